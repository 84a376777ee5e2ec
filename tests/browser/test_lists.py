"""Overview, plans, lineages: what they show is what the API says; filters work with and without script."""

import re

import pytest

from api.quantities import duration, percent, size
from tests.api.http.server import wait_until
from tests.browser.conftest import check_accessible, check_fits
from tests.browser.site import Site

PAGES = (
    "/",
    "/plans",
    "/lineages",
    "/lineages/small-decoder",
    "/clusters",
    "/clusters/two nodes of eight",
    "/jobs",
)


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_fit_a_phone(page, path: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(path)
    check_accessible(page)
    page.set_viewport_size({"width": 360, "height": 740})
    check_fits(page)
    for table in page.locator("table").all():
        assert table.locator("caption").count() == 1
        assert table.locator("th:not([scope])").count() == 0


def _rows(page, table: str = "#results") -> list[list[str]]:
    return [
        [re.sub(r"\s+", " ", cell).strip() for cell in row.locator("th, td").all_inner_texts()]
        for row in page.locator(f"{table} tbody tr").all()
    ]


def test_the_numbers_of_the_list_are_those_of_the_api(page, site: Site) -> None:
    page.goto("/plans")
    shown, told = _rows(page), site.get("/v1/plans")["items"]
    assert len(shown) == len(told)
    for row, plan in zip(shown, told, strict=True):
        assert row[0] == f"{plan['name']} {plan['plan_id'][7:19]}"
        assert row[1] == plan["outcome"]
        assert row[2] == f"{plan['world_size']:,}"
        if plan["outcome"] == "feasible":
            numbers = [duration(plan["step_time_ns"]), size(plan["reserved_bytes"]), percent(plan["gap"])]
            assert row[3:6] == numbers
        else:
            assert row[3:6] == ["", "", ""]
        assert row[6:8] == [plan["model_name"], plan["cluster_name"]]
    times = page.locator("#results time").evaluate_all("all => all.map(time => time.dateTime)")
    assert times == [plan["created_at"] for plan in told]


def test_the_counts_of_the_overview_are_those_of_the_api(page, site: Site) -> None:
    page.goto("/")
    told = site.get("/v1/overview")
    figures = page.locator(".figures dd").all_inner_texts()
    assert figures[0] == str(told["plans"]["feasible"])
    assert figures[1] == str(told["plans"]["infeasible"])
    assert int(figures[5]) == told["reviews_waiting"]
    clusters = _rows(page, "[aria-labelledby=clusters]")
    for row, one in zip(clusters, site.get("/v1/current-clusters")["items"], strict=True):
        assert row[0].startswith(one["name"])
        assert row[1:] == [f"{one['num_devices']:,}", size(one["device_memory_bytes"]), str(one["num_plans"])]


def test_filters_follow_what_is_typed_and_the_address_says_so(page, site: Site) -> None:
    page.goto("/plans")
    page.get_by_label("Outcome").select_option("infeasible")
    page.wait_for_url("**/plans?outcome=infeasible")
    wait_until(lambda: page.locator("#results tbody tr").count() == 1)
    assert site.infeasible_id[7:19] in _rows(page)[0][0]
    page.get_by_label("Name contains").fill("no such plan")
    page.get_by_text("No plan is like that").wait_for()
    assert "name=no+such+plan" in page.url
    page.go_back()
    page.wait_for_url("**/plans?outcome=infeasible")
    wait_until(lambda: page.locator("#results tbody tr").count() == 1)
    page.reload()
    assert page.get_by_label("Outcome").input_value() == "infeasible"


def test_sorting_keeps_the_filter_and_turns_around(page, site: Site) -> None:
    page.goto("/plans?outcome=feasible")
    page.get_by_role("link", name="Step time").click()
    page.wait_for_url("**sort=step_time**")
    told = site.get("/v1/plans?outcome=feasible&sort=step_time&order=asc")["items"]
    assert [row[3] for row in _rows(page)] == [duration(plan["step_time_ns"]) for plan in told]
    assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"
    page.get_by_role("link", name="Step time").click()
    page.wait_for_url("**order=desc**")
    assert [row[3] for row in _rows(page)] == [duration(plan["step_time_ns"]) for plan in reversed(told)]


def test_everything_works_without_script(browser, site: Site) -> None:
    context = browser.new_context(base_url=site.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/plans")
    page.get_by_label("Cluster").select_option("too small")
    page.get_by_role("button", name="Show").click()
    assert len(page.locator("#results tbody tr").all()) == 1
    page.goto(f"/lineages/{site.lineage}")
    assert page.get_by_role("heading", level=1).inner_text() == site.lineage
    context.close()


def test_a_revision_is_activated_once_for_each_look_at_the_page(page, browser, site: Site) -> None:
    before = site.get(f"/v1/lineages/{site.lineage}")
    other = 2 if before["active"]["revision"] == 1 else 1
    page.goto(f"/lineages/{site.lineage}")
    stale = page.context.new_page()
    stale.goto(f"/lineages/{site.lineage}")
    for tab in (page, stale):
        tab.locator("summary", has_text=f"revision {other}").click()
        tab.get_by_label("Why").fill("trial")
        tab.locator("details[open] button").click()
        tab.wait_for_load_state()
    assert page.get_by_role("status").inner_text() == "The revision is active now."
    after = site.get(f"/v1/lineages/{site.lineage}")
    assert after["active"]["revision"] == other
    assert "trial" in page.get_by_role("region", name="Activations").first.inner_text()
    assert stale.get_by_role("heading", level=1).inner_text() == "Precondition Failed"
    assert "look at it again" in stale.inner_text("main")
    moves = site.get(f"/v1/lineages/{site.lineage}/activations")["items"]
    assert len([move for move in moves if move["why"] == "trial"]) == 1
