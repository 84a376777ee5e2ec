"""Two plans side by side: the differences of the API."""

from tests.browser.conftest import check_accessible, check_fits


def test_two_plans_side_by_side(page, site) -> None:
    first, second = site.plan_ids[:2]
    page.goto(f"/compare?a={first}")
    page.select_option("#plan-b", second)
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector("memory-chart[data-ready] >> nth=1")
    found = site.get(f"/v1/plans/{first}/diff?with={second}")
    asked = page.inner_text("section:has(#asked)")
    for words in found["inputs"].values():
        assert words in asked
    rows = page.eval_on_selector_all(
        "#changes-table tbody tr", "all => all.map(row => [...row.cells].map(one => one.textContent))"
    )
    expected = [
        [one["path"].replace("decisions.", ""), one["before"] or "-", one["after"] or "-"]
        for one in found["changes"]
        if not one["path"].startswith(("predictions", "certificate.lower_bound"))
    ]
    assert rows == expected
    assert "step time" in page.inner_text("#numbers-table")
    check_accessible(page)
    page.get_by_role("link", name="Swap").click()
    assert page.url.endswith(f"a={second}&b={first}")


def test_equal_plans_and_infeasible_ones(page, site) -> None:
    first = site.plan_ids[0]
    page.goto(f"/compare?a={first}&b={first}")
    assert "both answer the same request" in page.inner_text("main")
    assert "Decisions are the same" in page.inner_text("main")
    page.goto(f"/compare?a={first}&b={site.infeasible_id}")
    assert "only plans that fit" in page.inner_text("main")
    page.set_viewport_size({"width": 390, "height": 800})
    check_fits(page)
    check_accessible(page)
