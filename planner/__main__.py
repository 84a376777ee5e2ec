"""`python -m planner`: one request on standard input, JSON lines on standard output, the last one the plan.

Events: `progress` (elapsed_s, incumbent_ns, bound_ns, message) and `provisional` (plan: the best so far), then
`plan` (exit 0) or `error` (code, message, path; exit 2).
"""

import json
import sys
from collections.abc import Mapping
from functools import partial

from planner.plan import Progress, make_plan
from planner.schema import InvalidDocument, Plan, PlanRequest, ShardwrightError, UnsupportedField


def main() -> int:
    """Plan the request on standard input."""
    try:
        request = PlanRequest.from_json(sys.stdin.buffer.read(), source="request")
        plan = make_plan(request, on_progress=_report, on_provisional=partial(_emit_plan, "provisional"))
    except ShardwrightError as error:
        path = _path(error)
        _emit({"event": "error", "code": error.code, "message": str(error), "path": path})
        return 2
    _emit_plan("plan", plan)
    return 0


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
