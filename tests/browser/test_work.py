"""Jobs, clusters and regenerations: live, and what their forms do."""

from urllib.parse import urlsplit

from tests.api.http.server import decoder_request
from tests.browser.conftest import check_accessible, check_fits
from tests.browser.site import Site


def test_a_job_is_watched_cancelled_and_tried_again(page, site: Site) -> None:
    job_id = site.post("/v1/plans?wait=0", decoder_request(48))["job_id"]
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("/jobs")
    page.locator("tbody tr", has_text="running").first.wait_for()
    check_accessible(page)
    page.goto(f"/jobs/{job_id}")
    page.get_by_text("Best so far").wait_for()
    check_accessible(page)
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_url("**notice=cancelled**")
    assert page.get_by_role("status").inner_text() == "Cancelled."
    assert site.get(f"/v1/jobs/{job_id}")["state"] == "cancelled"
    assert "cancelled it" in page.inner_text("main")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_url("**notice=retried**")
    again = page.url.split("/jobs/")[1].split("?")[0]
    assert site.get(f"/v1/jobs/{again}")["attempt"] == 2
    page.goto("/jobs")
    row = page.locator("tbody tr", has_text="attempt 2").first
    row.get_by_role("button", name="Cancel").click()
    page.wait_for_url("**notice=cancelled**")
    page.goto("/jobs?state=cancelled")
    assert page.locator("tbody tr").count() == site.get("/v1/overview")["jobs"]["cancelled"]


def test_a_question_that_is_answered_with_no_sends_nothing(page, site: Site) -> None:
    job_id = site.post("/v1/plans?wait=0", decoder_request(47))["job_id"]
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.goto(f"/jobs/{job_id}")
    page.get_by_role("button", name="Cancel").click()
    assert site.get(f"/v1/jobs/{job_id}")["state"] in ("queued", "running")
    site.server.http.post(f"/v1/jobs/{job_id}/cancel")
    page.get_by_text("cancelled it").wait_for()
    assert page.get_by_role("button", name="Try again").is_visible()


def test_a_change_is_previewed_started_watched_and_decided(page, site: Site) -> None:
    name = "two nodes of eight"
    page.goto(f"/clusters/{name}")
    assert page.locator("svg.topology").get_attribute("role") == "img"
    assert page.locator("svg.topology rect.device").count() == 16
    page.get_by_label("What changed").select_option("link_degraded")
    assert not page.get_by_label("How many nodes").is_visible()
    page.get_by_label("Bandwidth that is left").fill("50")
    page.get_by_label("Takes over if").fill("")
    page.get_by_label("Why", exact=True).fill("a switch is broken")
    page.get_by_role("button", name="Show what it would touch").click()
    page.get_by_text("Nothing was changed yet").wait_for()
    check_accessible(page)
    current = site.get(f"/v1/clusters/{name}/current")
    told = site.post(
        f"/v1/clusters/{name}/revisions",
        {"changes": [{"change": "link_degraded", "link": "inter_node", "share": 0.5}], "dry_run": True},
    )
    assert f"would touch {told['num_items']} plan" in page.inner_text("#preview")
    assert current["revision"] == 0
    page.get_by_role("button", name="Change the cluster").click()
    page.wait_for_url("**/regenerations/reg_**")
    identity = page.url.split("/regenerations/")[1].split("?")[0]
    page.get_by_text("done", exact=True).first.wait_for(timeout=120_000)
    found = site.get(f"/v1/regenerations/{identity}")
    assert found["num_items"] == told["num_items"]
    page.reload()
    figures = dict(
        zip(
            page.locator(".figures dt").all_inner_texts(),
            page.locator(".figures dd").all_inner_texts(),
            strict=True,
        )
    )
    for verdict, number in found["verdicts"].items():
        assert figures[verdict.capitalize()] == str(number)
    check_accessible(page)
    page.set_viewport_size({"width": 360, "height": 740})
    check_fits(page)
    page.set_viewport_size({"width": 1440, "height": 900})
    waiting = site.get(f"/v1/regenerations/{identity}/items?review=waiting")["items"]
    assert len(waiting) == 1
    page.get_by_role("button", name=f"Accept item {waiting[0]['number']}").click()
    page.wait_for_url("**notice=accepted**")
    item = site.get(f"/v1/regenerations/{identity}/items")["items"][waiting[0]["number"] - 1]
    assert item["review"] == "accepted"
    assert site.get(f"/v1/lineages/{item['lineage']}")["active"]["revision"] == item["new_revision"]
    page.goto("/regenerations")
    check_accessible(page)
    assert page.locator("tbody tr").count() == len(site.get("/v1/regenerations")["items"])


def test_a_change_that_is_none_is_a_page_that_says_why(page, site: Site) -> None:
    page.watched.expected.add(422)
    page.goto("/clusters/two nodes of eight")
    page.get_by_label("How many nodes").fill("many")
    page.get_by_role("button", name="Show what it would touch").click()
    page.get_by_text("has to be a number").wait_for()


def test_pages_say_that_the_server_is_away_and_recover(page, site: Site) -> None:
    page.watched.expected.add(503)
    page.goto("/")
    page.route(
        lambda url: urlsplit(url).path == "/",
        lambda route: route.fulfill(status=503, content_type="text/html", body="away"),
    )
    page.locator("#lost").wait_for(state="visible")
    page.unroute_all()
    page.locator("#lost").wait_for(state="hidden")
