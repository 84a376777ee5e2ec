"""Predicted against measured, from the answers of a service."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.cli.render.arrange import indented, spaced
from api.quantities import change, duration, size

_TO_THE_MINUTE = 16
HOW_TO_REPORT = "Jobs report with runtime_client.measure.StepTimer(PLAN_ID, run=NAME, report=client.report)."


def report_page(found: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]) -> RenderableType:
    """A plan's predictions, what it comes to, and the newest reports."""
    title = Text.assemble((found["name"], "headline"), ("  " + found["plan"], "quiet"))
    step, peak = found["predicted_step_time_ns"], found["predicted_peak_bytes"]
    predicted = Text.assemble(
        "predicted  ", (duration(step), "figure"), " a step, ", (size(peak), "figure"), " peak"
    )
    words = Text(found["words"], "warning" if found["drift"] else "")
    parts: list[RenderableType] = [title, Group(predicted, words)]
    if not reports:
        return spaced((*parts, Text(HOW_TO_REPORT, "quiet")))
    table = Table(box=None, pad_edge=False, header_style="quiet", padding=(0, 2, 0, 0))
    for column in ("at", "run", "steps", "step", "change", "p99", "peak", "change"):
        table.add_column(column, no_wrap=column == "at", overflow="fold")
    for row in reports:
        p99, used = row["step_time_p99_ns"], row["peak_bytes"]
        table.add_row(
            row["measured_at"][:_TO_THE_MINUTE].replace("T", " "),
            row["run"],
            f"{row['first_step']}-{row['last_step']}",
            duration(row["step_time_ns"]),
            change(step, row["step_time_ns"]),
            "" if p99 is None else duration(p99),
            "" if used is None else size(used),
            "" if used is None else change(peak, used),
        )
    shown = f"Reports, the last {len(reports)} of {found['num_reports']}"
    return spaced((*parts, Group(Text(shown, style="title"), indented(table))))
