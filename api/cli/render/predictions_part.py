"""Memory and step time of a configuration: two bars and the numbers under them."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.cli.render.arrange import indented
from api.cli.render.stacked_bar import Segment, StackedBar
from api.quantities import count, gib, milliseconds, percent
from planner.schema import MemoryCategory, NumberSource, Predictions, StepBreakdown

_CATEGORIES = (
    (MemoryCategory.PARAMETERS, "parameters", "blue", "P"),
    (MemoryCategory.OPTIMIZER, "optimizer", "magenta", "O"),
    (MemoryCategory.GRADIENTS, "gradients", "green", "D"),
    (MemoryCategory.UNSHARDED_PARAMETERS, "unsharded parameters", "bright_blue", "U"),
    (MemoryCategory.UNSHARDED_GRADIENTS, "unsharded gradients", "bright_green", "G"),
    (MemoryCategory.GATHER_BUFFERS, "gather buffers", "cyan", "A"),
    (MemoryCategory.REDUCE_BUFFERS, "reduce buffers", "bright_cyan", "R"),
    (MemoryCategory.ACTIVATIONS, "activations", "yellow", "X"),
    (MemoryCategory.TRANSIENTS, "transients", "red", "T"),
    (MemoryCategory.BUFFERS, "buffers", "white", "B"),
)
_STEP = (
    ("compute_ns", "compute", "green", "C"),
    ("recompute_ns", "recompute", "yellow", "R"),
    ("copy_ns", "copies", "blue", "Y"),
    ("exposed_all_gather_ns", "exposed gather", "red", "G"),
    ("exposed_reduce_scatter_ns", "exposed reduce", "bright_red", "S"),
    ("exposed_all_reduce_ns", "exposed all-reduce", "magenta", "A"),
    ("exposed_host_copy_ns", "exposed host copy", "bright_black", "H"),
    ("exposed_launch_ns", "launch", "cyan", "L"),
    ("optimizer_ns", "optimizer", "bright_magenta", "O"),
)
_POOLS_APART = "pools peak apart"


def memory_part(predictions: Predictions) -> RenderableType:
    """Bar of the memory peak against the budget, and how the budget comes about."""
    peak, budget = predictions.peak, predictions.budget
    segments = [
        Segment(
            name=name,
            value=peak.by_category_bytes.get(category, 0),
            label=gib(peak.by_category_bytes.get(category, 0)),
            style=style,
            letter=letter,
        )
        for category, name, style, letter in _CATEGORIES
    ]
    apart = max(0, peak.reserved_bytes - peak.allocated_bytes)
    segments.append(Segment(name=_POOLS_APART, value=apart, label=gib(apart), style="bright_black", letter="~"))
    scale = max(budget.budget_bytes, peak.reserved_bytes)
    where = f" ({peak.moment})" if peak.moment else ""
    return Group(
        Text.assemble(("Memory at the peak", "title"), (where, "quiet"), (", GiB per rank", "quiet")),
        StackedBar(
            segments=segments,
            scale=scale,
            limit=budget.budget_bytes,
            limit_label=f"budget {gib(budget.budget_bytes)}",
        ),
        indented(Text(_budget_words(predictions), style="quiet")),
    )


def step_part(predictions: Predictions) -> RenderableType:
    """Bar of where the step's time goes."""
    breakdown = predictions.breakdown
    total = breakdown.total_ns or predictions.step_time_ns
    segments = [
        Segment(
            name=name,
            value=value,
            label=f"{milliseconds(value)}  {percent(value / max(1, total)):>6}",
            style=style,
            letter=letter,
        )
        for field, name, style, letter in _STEP
        if (value := _field(breakdown, field))
    ]
    counts = ", ".join(
        count(number, noun)
        for number, noun in (
            (predictions.num_all_gathers, "all-gather"),
            (predictions.num_reduce_scatters, "reduce-scatter"),
            (predictions.num_all_reduces, "all-reduce"),
        )
        if number
    )
    title = Text.assemble(("One step", "title"), (f"  ({milliseconds(total)} ms)", "quiet"))
    parts: list[RenderableType] = [title, StackedBar(segments=segments, scale=total)]
    if counts:
        parts.append(indented(Text(f"{counts}", style="quiet")))
    return Group(*parts)


def sources_part(predictions: Predictions) -> RenderableType | None:
    """Which numbers are measured and which are assumed; None when the predictions list none."""
    if not predictions.sources:
        return None
    styles = {NumberSource.MEASURED: "good", NumberSource.INTERPOLATED: "none", NumberSource.ASSUMED: "warning"}
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="quiet")
    for source in NumberSource:
        numbers = [number for number in predictions.sources if number.source is source]
        if numbers:
            words = number_words(number.name for number in numbers)
            bases = "; ".join(dict.fromkeys(number.basis for number in numbers if number.basis))
            table.add_row(
                str(len(numbers)), Text(source, style=styles[source]), f"{words} ({bases})" if bases else words
            )
    return Group(Text("Numbers it rests on", style="title"), indented(table))


def number_words(names: Iterable[str]) -> str:
    """Names of numbers, those of one thing put together.

    >>> number_words(["forward of block", "backward of block", "launch", "gather: rate", "gather: latency"])
    'compute of block; launch; gather'
    """
    computed: list[str] = []
    others: list[str] = []
    for name in names:
        verb, found, call = name.partition(" of ")
        if found and verb in ("forward", "backward", "recompute"):
            computed.append(call)
        else:
            others.append(name.partition(": ")[0])
    calls = [f"compute of {', '.join(dict.fromkeys(computed))}"] if computed else []
    return "; ".join([*calls, *dict.fromkeys(others)])


def _budget_words(predictions: Predictions) -> str:
    budget = predictions.budget
    held_back = [
        (budget.context_bytes, "context"),
        (budget.communicators_bytes, f"communicators ({budget.num_communicators})"),
        (budget.fragmentation_bytes, "fragmentation"),
        (budget.other_bytes, "other"),
    ]
    parts = [f"{gib(value)} {name}" for value, name in held_back if value]
    accounted = budget.budget_bytes + sum(value for value, _ in held_back)
    words = f"device {gib(budget.device_bytes)} = {' + '.join([f'{gib(budget.budget_bytes)} budget', *parts])}"
    rest = budget.device_bytes - accounted
    if rest > 0:
        words += f" + {gib(rest)} left out by the limit"
    tiers = [(predictions.host_bytes, "host"), (predictions.nvme_bytes, "NVMe")]
    return words + "".join(f"; {gib(value)} in {name} memory" for value, name in tiers if value)


def _field(breakdown: StepBreakdown, name: str) -> int:
    value: int = getattr(breakdown, name)
    return value
