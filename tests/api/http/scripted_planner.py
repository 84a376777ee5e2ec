"""A planner that does what a folder says: waits for a person at its gate, then plans with the real one.

Run as `python scripted_planner.py FOLDER` with a request on standard input. Files in the folder: `started` gets the
name of each model as its search starts, `warm` the decisions it starts from; a search goes on when `open` or
`open-NAME` is there; with `provisional` there, it gives its plan as a provisional one first.
"""

import json
import sys
import time
from pathlib import Path

from planner.plan import make_plan
from planner.schema import Plan, PlanRequest


def emit(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def emit_plan(event: str, plan: Plan) -> None:
    emit(event, plan=plan.model_dump(mode="json", exclude_defaults=True))


def unproven(plan: Plan) -> Plan:
    certificate = plan.body.certificate
    assert certificate is not None
    weaker = {"status": "provisional", "lower_bound": 0, "gap": 1.0}
    return Plan.of(plan.body.model_copy(update={"certificate": certificate.model_copy(update=weaker)}))


def main() -> None:
    folder = Path(sys.argv[1])
    value = json.load(sys.stdin)
    starts_warm = "warm_start" in value and "request" in value
    request = PlanRequest.from_object(value["request"] if starts_warm else value)
    name = request.model.name
    if starts_warm:
        (folder / "warm").write_text(json.dumps(value["warm_start"]))
    with (folder / "started").open("a") as file:
        file.write(f"{name}\n")
    emit("progress", elapsed_s=0.0, message="at the gate")
    plan = make_plan(request)
    if (folder / "provisional").exists():
        emit_plan("provisional", unproven(plan))
    while not ((folder / "open").exists() or (folder / f"open-{name}").exists()):
        time.sleep(0.02)
    emit_plan("plan", plan)


if __name__ == "__main__":
    main()
