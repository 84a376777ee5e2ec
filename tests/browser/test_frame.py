"""What all pages share: navigation, keyboard, errors."""

from tests.browser.conftest import check_accessible, check_fits


def test_an_address_that_is_not_there_is_a_page_that_says_what_to_do(page) -> None:
    page.watched.expected.add(404)
    answer = page.goto("/nothing")
    assert answer.status == 404
    assert page.get_by_role("heading", level=1).inner_text() == "Not Found"
    assert page.get_by_role("navigation", name="Main").is_visible()
    check_accessible(page)


def test_the_first_tab_stop_skips_the_navigation(page) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_narrow_screen_shows_everything(page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto("/")
    check_fits(page)
