"""What was not chosen, and what it would have cost; what looser limits are worth."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.cli.render.arrange import indented
from api.quantities import change, duration, gib
from planner.schema import Alternative, PlanBody, Predictions

_GAP = "{} ones are within the accepted gap (--gap), part of which makes the plan easier to read"


def alternatives_part(body: PlanBody) -> RenderableType | None:
    """The best plans found with another mesh or grouping."""
    return _part("Alternatives", body.reasons.alternatives, body)


def why_not_part(body: PlanBody) -> RenderableType | None:
    """The best plans found with one kind of decision changed."""
    return _part("With other decisions", body.reasons.why_not, body)


def _part(title: str, others: Sequence[Alternative], body: PlanBody) -> RenderableType | None:
    chosen, certificate = body.predictions, body.certificate
    if not others or chosen is None or certificate is None:
        return None
    is_memory = certificate.objective == "peak_memory_bytes"
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="quiet")
    table.add_column("instead")
    for heading in ("step", "", "peak GiB", "") if is_memory else ("step", "", "peak GiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for other in others:
        table.add_row(other.change, *_cells(other, chosen, is_memory=is_memory), _verdict(other, chosen))
    parts: list[RenderableType] = [Text(title, style="title"), indented(table)]
    if any(other.fits and _is_better(other, chosen, is_memory=is_memory) for other in others):
        parts.append(indented(Text(_GAP.format("leaner" if is_memory else "faster"), style="quiet")))
    return Group(*parts)


def _cells(other: Alternative, chosen: Predictions, *, is_memory: bool) -> Iterator[str | Text]:
    step, memory = other.step_time_ns, other.reserved_bytes
    yield "-" if step is None else duration(step)
    yield _change(chosen.step_time_ns, step, fits=other.fits)
    yield "-" if memory is None else gib(memory)
    if is_memory:
        yield _change(chosen.peak.reserved_bytes, memory, fits=other.fits)


def _change(before: int, after: int | None, *, fits: bool) -> Text:
    if after is None:
        return Text("")
    return Text(change(before, after), style="warning" if after > before else "good" if fits else "quiet")


def _verdict(other: Alternative, chosen: Predictions) -> Text:
    budget, memory = chosen.budget.budget_bytes, other.reserved_bytes
    if other.fits:
        return Text("fits", style="quiet")
    if memory is None:
        return Text("does not fit", style="error")
    return Text(f"{gib(memory - budget)} too much" if memory > budget else "too slow", style="error")


def _is_better(other: Alternative, chosen: Predictions, *, is_memory: bool) -> bool:
    value = other.reserved_bytes if is_memory else other.step_time_ns
    return value is not None and value < (chosen.peak.reserved_bytes if is_memory else chosen.step_time_ns)
