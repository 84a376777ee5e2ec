"""What `shardwright plan --front` prints: the plans side by side, and what changes from each to the next."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.cli.render.arrange import indented, spaced
from api.cli.render.plan_page import command_line, subject_line
from api.quantities import change, count, duration, gib, percent, size
from planner.explain import diff
from planner.schema import Certificate, Objective, PlanBody, PlanRequest

if TYPE_CHECKING:
    from planner.sweeps import Planned

NUM_CHANGES = 8
"""Changes of decisions in words from a plan to the next; the rest is counted."""


def front_page(
    points: Sequence["Planned"], request: PlanRequest, *, saved_as: Sequence[Path], words: str
) -> RenderableType:
    """The whole page.

    Args:
        points: feasible plans, the fastest first.
        request: what they were swept from.
        saved_as: where they were written, in order; empty where they were not.
        words: shell words of `plan` that make them again.
    """
    return spaced(
        (
            subject_line(request.model.name, request),
            _table(points, request),
            *(_step(number, *pair) for number, pair in enumerate(pairwise(points), start=1)),
            _next(saved_as, words),
        )
    )


def _table(points: Sequence["Planned"], request: PlanRequest) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="quiet")
    table.add_column("plan", justify="right", no_wrap=True)
    for heading in ("step", "", "peak GiB", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("proven")
    first = points[0].predictions
    for number, point in enumerate(points, start=1):
        predictions, certificate = point.predictions, point.plan.body.certificate
        assert first is not None
        assert predictions is not None
        assert certificate is not None
        step, peak = predictions.step_time_ns, predictions.peak.reserved_bytes
        table.add_row(
            str(number),
            Text(duration(step), style="figure"),
            Text("" if number == 1 else change(first.step_time_ns, step), style="quiet"),
            Text(gib(peak), style="figure"),
            Text("" if number == 1 else change(first.peak.reserved_bytes, peak), style="quiet"),
            _role(point, request),
            _proof(certificate),
        )
    return Group(Text("Step time against memory", style="title"), indented(table))


def _proof(certificate: Certificate) -> Text:
    """How far from the best possible, of what the plan minimises."""
    if certificate.status == "optimal":
        return Text("optimal", style="good")
    if not certificate.lower_bound:
        return Text("nothing yet", style="warning")
    return Text(
        f"within {percent(certificate.gap)}", style="warning" if certificate.status == "provisional" else "none"
    )


def _role(point: "Planned", request: PlanRequest) -> str:
    limit = point.request.limits.memory_bytes
    if point.request.objective is Objective.PEAK_MEMORY:
        return "leanest"
    return "fastest" if limit is None or limit == request.limits.memory_bytes else f"fastest in {size(limit)}"


def _step(number: int, before: "Planned", after: "Planned") -> RenderableType:
    changes = list(_decisions_changed(before.plan.body, after.plan.body))
    hidden = len(changes) - NUM_CHANGES
    lines = [*changes[:NUM_CHANGES], *([f"and {count(hidden, 'other change')}"] if hidden > 0 else [])]
    return Group(
        Text(f"From plan {number} to plan {number + 1}", style="title"),
        *(indented(Text.assemble(("- ", "quiet"), line)) for line in lines),
    )


def _decisions_changed(before: PlanBody, after: PlanBody) -> Iterable[str]:
    return (item.words for item in diff(before, after) if item.path.startswith("decisions"))


def _next(saved_as: Sequence[Path], words: str) -> RenderableType:
    if not saved_as:
        return command_line("Keep them", f"shardwright plan {words} -o plan.json --save-request request.json")
    return Text.assemble(("Saved as ", "quiet"), ", ".join(map(str, saved_as)))
