"""`python -m planner`: one request on standard input, JSON lines on standard output, the last one the plan.

The request stands alone, or in `{"warm_start": ..., "request": ...}` after the decisions of the plan that it
names; null where that plan did not fit.

Events: `progress` (elapsed_s, incumbent_ns, bound_ns, message) and `provisional` (plan: the best so far), then
`plan` (exit 0) or `error` (code, message, path; exit 2).
"""

import json
import sys
from collections.abc import Mapping
from functools import partial

from planner.plan import Progress, make_plan
from planner.schema import Decisions, InvalidDocument, Plan, PlanRequest, ShardwrightError, UnsupportedField

_WITH_WARM_START = b'{"warm_start":'


def main() -> int:
    """Plan the request on standard input."""
    try:
        text = sys.stdin.buffer.read()
        request, warm_start = _read(text)
        plan = make_plan(
            request,
            on_progress=_report,
            on_provisional=partial(_emit_plan, "provisional"),
            warm_start=warm_start,
            may_start_cold=text.startswith(_WITH_WARM_START),
        )
    except ShardwrightError as error:
        path = _path(error)
        _emit({"event": "error", "code": error.code, "message": str(error), "path": path})
        return 2
    _emit_plan("plan", plan)
    return 0


def _read(text: bytes) -> tuple[PlanRequest, Decisions | None]:
    if not text.startswith(_WITH_WARM_START):
        return PlanRequest.from_json(text, source="request"), None
    value = json.loads(text)
    decisions = None if value["warm_start"] is None else Decisions.model_validate(value["warm_start"])
    return PlanRequest.from_object(value["request"], source="request"), decisions


def _path(error: ShardwrightError) -> str | None:
    if isinstance(error, UnsupportedField):
        return error.path
    if isinstance(error, InvalidDocument) and error.problems:
        return error.problems[0][0]
    return None


def _report(progress: Progress) -> None:
    _emit(
        {
            "event": "progress",
            "elapsed_s": round(progress.elapsed_s, 3),
            "incumbent_ns": progress.incumbent_ns,
            "bound_ns": progress.bound_ns,
            "incumbent_bytes": progress.incumbent_bytes,
            "bound_bytes": progress.bound_bytes,
            "message": progress.message,
        }
    )


def _emit_plan(event: str, plan: Plan) -> None:
    _emit({"event": event, "plan": plan.model_dump(mode="json", exclude_defaults=True)})


def _emit(event: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(event, separators=(",", ":")) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
