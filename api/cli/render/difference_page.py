"""What `shardwright diff` prints: predictions side by side, then decisions that changed."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.cli.render.arrange import indented, spaced
from api.quantities import change, duration, gib, percent, quantity
from planner.explain import Difference, diff
from planner.schema import PlanBody, Predictions

_IN_THE_TABLE = ("predictions", "certificate.lower_bound")


def difference_page(before: PlanBody, after: PlanBody) -> RenderableType:
    """The whole page."""
    differences = diff(before, after)
    title = Text.assemble((before.name, "headline"), ("  ->  ", "quiet"), (after.name, "headline"))
    if not differences:
        return spaced((title, Text("The two plans are the same.", style="good")))
    return spaced((title, _numbers(before, after), _changes(differences)))


def _numbers(before: PlanBody, after: PlanBody) -> RenderableType | None:
    if before.predictions is None or after.predictions is None:
        return None
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="quiet")
    table.add_column("")
    for heading in ("before", "after", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, old, new, verdict, good in _number_rows(before.predictions, after.predictions):
        style = "quiet" if verdict == "same" else "good" if good else "warning"
        table.add_row(Text(name, style="quiet"), old, new, Text(verdict, style=style))
    return Group(Text("Predictions", style="title"), indented(table))


def _number_rows(old: Predictions, new: Predictions) -> list[tuple[str, str, str, str, bool]]:
    rows = [
        (
            "step time",
            duration(old.step_time_ns),
            duration(new.step_time_ns),
            change(old.step_time_ns, new.step_time_ns),
            new.step_time_ns < old.step_time_ns,
        ),
        (
            "peak (GiB)",
            gib(old.peak.reserved_bytes),
            gib(new.peak.reserved_bytes),
            change(old.peak.reserved_bytes, new.peak.reserved_bytes),
            new.peak.reserved_bytes < old.peak.reserved_bytes,
        ),
        (
            "budget (GiB)",
            gib(old.budget.budget_bytes),
            gib(new.budget.budget_bytes),
            change(old.budget.budget_bytes, new.budget.budget_bytes),
            new.budget.budget_bytes > old.budget.budget_bytes,
        ),
    ]
    if old.tokens_per_s and new.tokens_per_s:
        rows.append(
            (
                "tokens/s",
                quantity(old.tokens_per_s),
                quantity(new.tokens_per_s),
                change(old.tokens_per_s, new.tokens_per_s),
                new.tokens_per_s > old.tokens_per_s,
            )
        )
    if old.model_flops_utilization and new.model_flops_utilization:
        rows.append(
            (
                "MFU",
                percent(old.model_flops_utilization),
                percent(new.model_flops_utilization),
                change(old.model_flops_utilization, new.model_flops_utilization),
                new.model_flops_utilization > old.model_flops_utilization,
            )
        )
    return rows


def _changes(differences: tuple[Difference, ...]) -> RenderableType | None:
    shown = [item for item in differences if not item.path.startswith(_IN_THE_TABLE)]
    if not shown:
        return Text("Decisions are the same.", style="quiet")
    lines = [indented(Text.assemble(("- ", "quiet"), item.words)) for item in shown]
    return Group(Text("What changed", style="title"), *lines)
