import os
import signal

from planner.schema import Decisions, Plan
from tests.api.http.server import wait_until
from tests.api.http.test_jobs import events_of
from tests.api.http.test_measurements import report


def test_who_cannot_wait_gets_the_best_plan_so_far_and_the_proof_replaces_it(gated) -> None:
    one = gated()
    one.give_provisional_plans()
    link = one.post("model")
    wait_until(lambda: one.get(link)["provisional_plan_id"] is not None)
    answer = one.ask("model", wait=0.1)
    assert answer.status_code == 202
    job = one.get(link)
    accepted = answer.json()
    given = accepted.pop("provisional_plan")
    assert (accepted, job["plan_id"]) == (job, None)
    plan = Plan.from_object(given)
    assert plan.verify()
    assert plan.envelope.plan_id == job["provisional_plan_id"]
    assert plan.envelope.job_id == job["job_id"]
    assert plan.body.certificate is not None
    assert plan.body.certificate.status == "provisional"
    assert one.get(job["links"]["provisional_plan"]) == given
    assert one.get("/v1/plans")["items"] == []
    with one.server.http.stream("GET", job["links"]["events"]) as stream:
        one.open()
        events = events_of(stream.read().decode())
    assert [event for event, _, _ in events] == ["progress", "provisional", "done"]
    assert events[1][1]["provisional_plan_id"] == plan.envelope.plan_id
    ended = one.get(link)
    assert events[2][1] == ended
    assert (ended["state"], ended["provisional_plan_id"]) == ("succeeded", None)
    proven = Plan.from_json(one.ask("model").content)
    assert proven.body.certificate is not None
    assert proven.body.certificate.status != "provisional"
    assert [item["plan_id"] for item in one.get("/v1/plans")["items"]] == [ended["plan_id"]]
    assert one.get(job["links"]["provisional_plan"]) == given


def test_a_cancelled_job_keeps_its_best_plan(gated) -> None:
    one = gated()
    one.give_provisional_plans()
    link = one.post("model")
    wait_until(lambda: one.get(link)["provisional_plan_id"] is not None)
    cancelled = one.server.http.delete(link).json()
    assert (cancelled["state"], cancelled["plan_id"]) == ("cancelled", None)
    kept = Plan.from_object(one.get(cancelled["links"]["provisional_plan"]))
    assert kept.envelope.plan_id == cancelled["provisional_plan_id"]
    assert one.get("/v1/plans")["items"] == []
    assert one.ask("model", wait=0).json()["attempt"] == 2

    measured = report({"body": kept.body.model_dump(), "envelope": kept.envelope.model_dump()})
    assert one.server.http.post("/v1/measurements", json=measured).status_code == 201
    assert one.get(f"/v1/plans/{kept.envelope.plan_id}/measurements")["num_reports"] == 1


def test_a_search_whose_planner_was_killed_goes_on_from_the_best_plan_so_far(gated) -> None:
    one = gated()
    one.give_provisional_plans()
    link = one.post("model")
    wait_until(lambda: one.get(link)["provisional_plan_id"] is not None)
    best = Plan.from_object(one.get(one.get(link)["links"]["provisional_plan"]))
    assert not (one.folder / "warm").exists()
    (planner,) = one.server.child_pids()
    os.kill(planner, signal.SIGKILL)
    wait_until(lambda: one.started() == ["model", "model"])
    assert Decisions.model_validate_json((one.folder / "warm").read_text()) == best.body.decisions
    one.open()
    assert one.ask("model", wait=60).status_code == 200
