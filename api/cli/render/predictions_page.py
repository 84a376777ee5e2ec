"""What `shardwright simulate` prints."""

from rich.console import RenderableType

from api.cli.render.arrange import spaced
from api.cli.render.decisions_part import decisions_part
from api.cli.render.plan_page import headline, subject_line
from api.cli.render.predictions_part import memory_part, sources_part, step_part
from planner.schema import Decisions, PlanRequest, Predictions


def predictions_page(predictions: Predictions, decisions: Decisions, request: PlanRequest) -> RenderableType:
    """The whole page: as that of a plan, without a proof."""
    return spaced(
        (
            subject_line(f"{request.model.name}, as written by hand", request),
            headline(predictions, None),
            decisions_part(decisions),
            memory_part(predictions),
            step_part(predictions),
            sources_part(predictions),
        )
    )
