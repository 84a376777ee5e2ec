"""What jobs reported, on the page of a plan and on the overview."""

import pytest

from tests.browser.conftest import check_accessible, check_fits
from tests.browser.site import Site
from tests.browser.test_plan import numbers


@pytest.fixture(scope="module")
def drifting_id(site: Site) -> str:
    """A plan of which five reports tell steps a quarter longer than predicted."""
    from tests.api.http.test_measurements import report

    plan = site.get(f"/v1/plans/{site.plan_ids[0]}")
    for number in range(5):
        at = f"2026-03-02T1{number}:00:00+00:00"
        site.post("/v1/measurements", report(plan, number, step=1.25 + number / 100, measured_at=at))
    return site.plan_ids[0]


def test_a_plan_that_drifts_says_so_in_numbers_words_and_a_picture(page, site: Site, drifting_id: str) -> None:
    page.goto(f"/plans/{drifting_id}")
    page.wait_for_selector("measured-chart[data-ready]")
    told = site.get(f"/v1/plans/{drifting_id}/measurements")
    reports = site.get(f"/v1/measurements?plan={drifting_id}")["items"]
    assert told["drift"] == ["slower"]
    assert page.inner_text("#drift") == told["words"]
    assert "data sheets" in told["words"]
    assert float(page.get_attribute("#step-ratio", "data-ratio")) == told["step_ratio"]
    assert float(page.get_attribute("#peak-ratio", "data-ratio")) == told["peak_ratio"]
    page.click("section:has(#measured) summary")
    assert numbers(page, "#measured-table td[data-ns]", "ns") == [one["step_time_ns"] for one in reports]
    assert numbers(page, "#measured-table td[data-bytes]", "bytes") == [one["peak_bytes"] for one in reports]
    drawn = page.evaluate("document.querySelector('measured-chart').data")
    assert (drawn["step"], drawn["peak"]) == (told["predicted_step_time_ns"], told["predicted_peak_bytes"])
    assert [one["ns"] for one in drawn["reports"]] == [one["step_time_ns"] for one in reversed(reports)]
    words = page.eval_on_selector_all("measured-chart svg text", "all => all.map(one => one.textContent)")
    assert {"predicted", "step time", "peak"} <= set(words)
    check_accessible(page)
    page.evaluate("document.querySelectorAll('measured-chart').forEach(one => one.observer.disconnect())")
    page.set_viewport_size({"width": 390, "height": 800})
    check_fits(page)  # a picture that is still as wide as the window was
    page.reload()
    page.wait_for_selector("measured-chart[data-ready]")
    check_fits(page)


def test_a_plan_that_nobody_measured_says_how_to_report(page, site: Site) -> None:
    page.goto(f"/plans/{site.plan_ids[1]}")
    panel = page.inner_text("section:has(#measured)")
    assert "Nothing was measured yet" in panel
    assert "runtime_client.measure.StepTimer" in panel
    assert page.query_selector("measured-chart") is None


def test_the_overview_names_plans_that_drift(page, site: Site, drifting_id: str) -> None:
    page.goto("/")
    told = site.get(f"/v1/plans/{drifting_id}/measurements")
    assert site.get("/v1/overview")["plans_drifting"] == 1
    rows = page.locator("section:has(#drifting) tbody tr")
    assert rows.count() == 1
    assert told["words"] in rows.inner_text()
    check_accessible(page)
    rows.get_by_role("link").click()
    page.wait_for_url(f"**/plans/{drifting_id}#measured")
