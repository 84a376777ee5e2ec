"""A real server with real plans, and Chromium that looks at it. Every page is watched: no other host, no error."""

import os
import shutil
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.api.http.server import Server
from tests.browser.site import Site, fill

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
BROWSER_REQUIRED = os.environ.get("REQUIRE_BROWSER") == "1"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path_factory.mktemp('site') / 'site.db'}"
    server = Server(url, {"SHARDWRIGHT_REGENERATION_POLL_S": "0.1"})
    yield fill(server)
    server.end()


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Of one module: while Playwright runs, nothing else in this thread can run an event loop (`asyncio.run`)."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        if BROWSER_REQUIRED:
            raise
        pytest.skip("playwright is not installed")
    if not os.path.exists(CHROMIUM):
        assert not BROWSER_REQUIRED, f"REQUIRE_BROWSER=1, and there is no {CHROMIUM}"
        pytest.skip(f"there is no {CHROMIUM}; install chromium, or say REQUIRE_BROWSER=1 to fail")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


class Watched:
    """What a page did that no page of ours may do. Tests that provoke an error name the status it has."""

    def __init__(self, page, host: str) -> None:
        self.foreign: list[str] = []
        self.errors: list[str] = []
        self.expected: set[int] = set()
        page.on("request", lambda request: self._request(request.url, host))
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _request(self, url: str, host: str) -> None:
        if urlsplit(url).netloc not in (host, "") and not url.startswith("data:"):
            self.foreign.append(url)

    def _console(self, message) -> None:
        is_expected = any(f"status of {status}" in message.text for status in self.expected)
        if message.type in ("error", "warning") and not is_expected:
            self.errors.append(f"{message.type}: {message.text}")


@pytest.fixture
def page(browser, site: Site) -> Iterator:
    """A page of 1440 by 900; addresses are relative to the server. `page.watched` holds what it did wrong."""
    context = browser.new_context(base_url=site.url, viewport={"width": 1440, "height": 900})
    context.set_default_timeout(20_000)
    opened = context.new_page()
    opened.watched = Watched(opened, urlsplit(site.url).netloc)
    yield opened
    assert opened.watched.foreign == []
    assert opened.watched.errors == []
    context.close()


def check_accessible(page) -> None:
    """No finding of axe-core that is serious or worse."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    grave = [rule for rule in found if rule["impact"] in ("serious", "critical")]
    shown = [(rule["id"], [node["html"][:200] for node in rule["nodes"][:3]]) for rule in grave]
    assert not shown, shown


def check_fits(page) -> None:
    """Nothing makes the page wider than the screen."""
    widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1], widths
