"""Why nothing fits, and the smallest change that would."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.cli.render.arrange import indented
from api.quantities import gib
from planner.schema import Infeasibility

NOT_MEMORY = ("batch", "world_size", "step_time")
"""What binds besides memory."""


def infeasible_part(why: Infeasibility) -> RenderableType:
    """A red headline, the numbers, the ways out."""
    binding = str(why.binding).replace("_", " ")
    head = Text("No plan is possible" if why.binding in NOT_MEMORY else "Nothing fits", style="error")
    if why.needed_bytes is not None and why.budget_bytes is not None:
        head.append(f": {gib(max(0, why.needed_bytes - why.budget_bytes))} GiB too much, even for the leanest plan")
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    facts.add_column(style="quiet", no_wrap=True)
    facts.add_column()
    rows = (
        ("what binds", binding),
        ("needed", _gib(why.needed_bytes)),
        ("budget", _gib(why.budget_bytes)),
        ("would fit with", _ways_out(why)),
    )
    for name, value in rows:
        if value:
            facts.add_row(name, value)
    parts: list[RenderableType] = [head, indented(Text(why.reason)), "", indented(facts)]
    if why.advice:
        parts += ["", Text("What would help", style="title")]
        parts += [indented(Text.assemble(("- ", "quiet"), line)) for line in why.advice]
    return Group(*parts)


def _gib(value_bytes: int | None) -> str:
    return "" if value_bytes is None else f"{gib(value_bytes)} GiB"


def _ways_out(why: Infeasibility) -> str:
    ways = []
    if why.smallest_device_memory_bytes is not None:
        ways.append(f"devices of {gib(why.smallest_device_memory_bytes)} GiB")
    if why.fewest_ranks is not None:
        ways.append(f"{why.fewest_ranks} ranks of the same kind")
    return ", or ".join(ways)
