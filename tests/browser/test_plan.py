"""The page of a plan: the numbers of the API, pictures with tables, and what can be taken away."""

import json
import re

import pytest
import yaml

from planner.schema import Decisions, Plan
from tests.api.http.server import wait_until
from tests.browser.conftest import check_accessible, check_fits


def open_plan(page, plan_id: str) -> None:
    page.goto(f"/plans/{plan_id}")
    for chart in ("memory-chart", "streams-chart"):
        page.wait_for_selector(f"{chart}[data-ready]")


def numbers(page, selector: str, name: str) -> list[int]:
    return [
        int(value) for value in page.eval_on_selector_all(selector, f"all => all.map(one => one.dataset.{name})")
    ]


@pytest.fixture(scope="session")
def ragged_id(site) -> str:
    """A plan with ragged buffers: rows of experts that no even cut keeps together."""
    from api.http.examples import REQUEST

    atoms = [{"parameters": "layers.*", "atom": {"type": "rows", "num_rows": 100}}]
    body = {**REQUEST, "workload": {**REQUEST["workload"], "atoms": atoms}}
    plan = site.post("/v1/plans?wait=300", body)
    assert plan["body"]["decisions"]["layouts"]
    return plan["envelope"]["plan_id"]


def test_numbers_are_those_of_the_api(page, site) -> None:
    plan_id = site.plan_ids[0]
    open_plan(page, plan_id)
    plan = Plan.from_object(site.get(f"/v1/plans/{plan_id}"))
    predictions = plan.body.predictions
    assert predictions is not None
    assert numbers(page, "#step-time", "ns") == [predictions.step_time_ns]
    assert numbers(page, "#peak", "bytes") == [predictions.peak.reserved_bytes]
    assert float(page.get_attribute("#gap", "data-gap")) == plan.body.certificate.gap
    assert str(predictions.peak.moment) in page.inner_text("section:has(#memory)")

    memory = site.get(f"/v1/plans/{plan_id}/memory?points=24")
    page.click("section:has(#memory) summary")
    assert numbers(page, "#memory-table td[data-bytes]", "bytes") == memory["total_bytes"]
    drawn = page.evaluate("document.querySelector('memory-chart').data")
    assert drawn == site.get(f"/v1/plans/{plan_id}/memory")
    page.click("section:has(#streams) summary")
    parts = {
        name: value for name, value in predictions.breakdown.model_dump().items() if value and name != "total_ns"
    }
    assert numbers(page, "#breakdown td[data-ns]", "ns") == list(parts.values())
    drawn = page.evaluate("document.querySelector('streams-chart').data")
    assert drawn == site.get(f"/v1/plans/{plan_id}/streams")


def test_pictures_say_what_matters_in_words(page, site) -> None:
    open_plan(page, site.plan_ids[0])
    words = page.eval_on_selector_all("memory-chart svg text", "all => all.map(one => one.textContent)")
    assert any(text.startswith("budget ") for text in words)
    assert any(text.startswith("peak ") or "pools apart" in text for text in words)
    tracks = page.eval_on_selector_all("streams-chart svg text", "all => all.map(one => one.textContent)")
    assert {"compute", "gather", "reduce"} <= set(tracks)


def test_zooming_asks_for_the_detail_of_the_window(page, site) -> None:
    open_plan(page, site.plan_ids[0])
    whole = page.evaluate("document.querySelector('streams-chart').data.shown_ns")
    with page.expect_response(lambda answer: "start_ns=" in answer.url) as waited:
        page.get_by_role("button", name="Zoom in").press("Enter")
    window = waited.value.json()
    assert window["end_ns"] - window["start_ns"] == pytest.approx(whole / 2, rel=0.01)
    page.wait_for_selector("streams-chart[data-window]")
    page.get_by_role("button", name="Whole step").press("Enter")
    page.wait_for_selector(f"streams-chart[data-window='0-{whole}']")


def test_decisions_are_drawn_along_the_units(page, site) -> None:
    open_plan(page, site.plan_ids[0])
    decisions = Decisions.model_validate(site.get(f"/v1/plans/{site.plan_ids[0]}")["body"]["decisions"])
    boxes = page.eval_on_selector_all(".strip-bar", "all => all.map(one => one.getAttribute('viewBox'))")
    assert set(boxes) == {f"0 0 {len(decisions.units)} 1"}
    for bar in page.query_selector_all(".strip-bar"):
        lengths = re.findall(
            r"h(\d+)v1", "".join(path.get_attribute("d") for path in bar.query_selector_all("path"))
        )
        assert sum(map(int, lengths)) == len(decisions.units)


def test_ragged_buffers_are_drawn_over_the_ranks(page, site, ragged_id: str) -> None:
    open_plan(page, ragged_id)
    text = page.inner_text("section:has(#buffers)")
    assert "rows together" in text
    decisions = Decisions.model_validate(site.get(f"/v1/plans/{ragged_id}")["body"]["decisions"])
    for layout in decisions.layouts:
        assert f"{layout.shard_elements:,}" in text
    assert page.query_selector_all(".bars path.padding")
    check_accessible(page)


def test_an_infeasible_plan_says_why_and_what_would_help(page, site) -> None:
    page.goto(f"/plans/{site.infeasible_id}")
    why = site.get(f"/v1/plans/{site.infeasible_id}")["body"]["infeasibility"]
    text = page.inner_text("main")
    assert why["reason"] in text
    for advice in why["advice"]:
        assert advice in text
    assert numbers(page, "dd[data-bytes]", "bytes") == [why["needed_bytes"], why["budget_bytes"]]
    check_accessible(page)


def test_downloads_are_the_plan_the_trace_and_yaml(page, site) -> None:
    plan_id = site.plan_ids[0]
    open_plan(page, plan_id)

    def download(name: str) -> str:
        with page.expect_download() as waited:
            page.get_by_role("link", name=name).click()
        return waited.value.path().read_text()

    plan = site.get(f"/v1/plans/{plan_id}")
    assert json.loads(download("Plan (JSON)")) == plan
    assert json.loads(download("Step for Perfetto")) == site.get(f"/v1/plans/{plan_id}/timeline")
    assert Decisions.model_validate(yaml.safe_load(download("Decisions (YAML)"))) == Decisions.model_validate(
        plan["body"]["decisions"]
    )
    assert f"{site.url}/v1/plans/{plan_id}" in page.inner_text("section:has(#use) pre >> nth=0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_it_fits_and_is_accessible_in_both_colours(page, site, ragged_id: str, scheme: str, width: int) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for plan_id in (site.plan_ids[0], ragged_id):
        open_plan(page, plan_id)
        for summary in page.query_selector_all("summary"):
            if not summary.evaluate("one => one.parentElement.open"):
                summary.click()
        check_fits(page)
        check_accessible(page)


def test_pictures_follow_the_colours_of_the_system(page, site) -> None:
    page.emulate_media(color_scheme="light")
    open_plan(page, site.plan_ids[0])
    fills = "[...document.querySelectorAll('memory-chart svg path')].map(one => one.getAttribute('fill')).join()"
    light = page.evaluate(fills)
    page.emulate_media(color_scheme="dark")
    wait_until(lambda: page.evaluate(fills) != light)
