"""What if: predicted as the API does while one types, solved when one asks."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from planner.schema import Plan
from tests.api.http.server import wait_until
from tests.browser.conftest import check_accessible, check_fits


def step_time_ns(page) -> int:
    return int(page.get_attribute("#new-step-time", "data-ns"))


def simulated(site, plan_id: str, **change: object) -> dict:
    return site.post("/v1/simulations", {"plan": plan_id, "change": change})["predictions"]


@contextmanager
def swapped(page) -> Iterator[None]:
    """Wait until the prediction that the block asks for is shown."""
    page.evaluate(
        "() => { window.swapped = new Promise(done => {"
        " document.addEventListener('htmx:after:swap', () => done(1), {once: true}); }); }"
    )
    yield
    page.evaluate("window.swapped")


def change_field(page, name: str, value: str) -> None:
    with swapped(page):
        page.fill(f"#{name}", value)


def test_a_plan_is_predicted_at_once_and_under_each_change(page, site) -> None:
    plan_id = site.plan_ids[0]
    page.goto("/what-if")
    page.click(f"a[href='/what-if?plan={plan_id}']")
    page.wait_for_selector("#new-step-time")
    plan = Plan.from_object(site.get(f"/v1/plans/{plan_id}"))
    assert step_time_ns(page) == plan.body.predictions.step_time_ns
    assert "Nothing is changed" in page.inner_text("#result")
    change_field(page, "sequence", "1024")
    assert step_time_ns(page) == simulated(site, plan_id, sequence=1024)["step_time_ns"]
    assert "Fits." in page.inner_text("#result")
    change_field(page, "budget_gib", "0.001")
    assert "Does not fit." in page.inner_text("#result")
    change_field(page, "num_ranks", "8")
    change = {"sequence": 1024, "num_ranks": 8, "memory_bytes": round(0.001 * 2**30)}
    answer = site.server.http.post("/v1/simulations", json={"plan": plan_id, "change": change})
    if answer.status_code == 200:
        assert step_time_ns(page) == answer.json()["predictions"]["step_time_ns"]
    else:
        assert answer.json()["detail"] in page.inner_text("#result")
    change_field(page, "num_ranks", "12")
    assert "take 8 or 16" in page.inner_text("#result")
    check_accessible(page)


def test_forbidden_knobs_are_taken_out(page, site) -> None:
    plan_id = next(
        (
            one
            for one in site.plan_ids
            if site.get(f"/v1/plans/{one}")["body"].get("requires", {}).get("client_features")
        ),
        None,
    )
    if plan_id is None:
        pytest.skip("no plan of this site uses a knob")
    feature = site.get(f"/v1/plans/{plan_id}")["body"]["requires"]["client_features"][0]
    page.goto(f"/what-if?plan={plan_id}")
    page.wait_for_selector("#new-step-time")
    with swapped(page):
        page.check(f"[name=forbid_{feature}]")
    assert step_time_ns(page) == simulated(site, plan_id, forbidden=[feature])["step_time_ns"]


def test_a_solve_leads_to_its_job_and_the_next_time_to_its_plan(page, site) -> None:
    plan_id = site.plan_ids[0]
    page.goto(f"/what-if?plan={plan_id}")
    page.wait_for_selector("#new-step-time")
    change_field(page, "sequence", "640")
    page.get_by_role("button", name="Ask for a solve").click()
    page.wait_for_url("**/jobs/**")
    job_id = page.url.rpartition("/jobs/")[2]
    wait_until(lambda: site.get(f"/v1/jobs/{job_id}")["plan_id"] is not None)
    solved = site.get(f"/v1/jobs/{job_id}")["plan_id"]
    page.goto(f"/what-if?plan={plan_id}")
    page.wait_for_selector("#new-step-time")
    change_field(page, "sequence", "640")
    page.get_by_role("button", name="Ask for a solve").click()
    page.wait_for_url(f"**/plans/{solved}")


def test_an_infeasible_plan_can_be_asked_for_anew(page, site) -> None:
    page.goto(f"/what-if?plan={site.infeasible_id}")
    assert "has no decisions" in page.inner_text("#result")
    page.set_viewport_size({"width": 390, "height": 800})
    check_fits(page)
    check_accessible(page)
