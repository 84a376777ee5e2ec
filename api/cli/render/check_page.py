"""What `shardwright check` prints."""

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from api.cli.render.arrange import indented
from api.cli.render.plan_page import peak_line
from api.quantities import count, duration
from planner.schema import PlanBody

if TYPE_CHECKING:
    from planner.check import CheckReport


def check_page(report: "CheckReport", body: PlanBody) -> RenderableType:
    """Passed with the numbers confirmed, or each problem on a line."""
    if report.passed:
        lines = [Text.assemble(("passed  ", "good"), (body.name, "headline"), f"  {body.outcome}")]
        if body.predictions is not None:
            time = duration(body.predictions.step_time_ns)
            lines.append(Text.assemble("        step ", (time, "figure"), "   ", peak_line(body.predictions)))
        return Group(*lines)
    head = Text.assemble((f"failed  {count(len(report.problems), 'problem')}  ", "error"), (body.name, "headline"))
    return Group(head, *(indented(Text.assemble(("- ", "quiet"), str(text))) for text in report.problems))
