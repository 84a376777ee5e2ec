"""A real server with real plans, and Chromium that looks at it. Every page is watched: no other host, no error."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from api.http.examples import CLUSTER
from tests.api.http.server import Server, decoder_request

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
BROWSER_REQUIRED = os.environ.get("REQUIRE_BROWSER") == "1"


@dataclass(frozen=True, kw_only=True)
class Site:
    """A server, and what is stored there."""

    server: Server
    plan_ids: list[str]
    """Feasible ones of the same model in two sizes; the first two are revisions 1 and 2 of the lineage."""
    infeasible_id: str
    lineage: str

    @property
    def url(self) -> str:
        return self.server.url

    def get(self, path: str) -> dict:
        """JSON of the API."""
        answer = self.server.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: dict) -> dict:
        answer = self.server.http.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()


def fill(server: Server) -> Site:
    """Ask a server for a few small plans, put them in a lineage."""
    http = server.http

    def plan(request: dict) -> str:
        answer = http.post("/v1/plans?wait=300", json=request)
        assert answer.status_code == 200, answer.text
        return answer.json()["envelope"]["plan_id"]

    two, workload = decoder_request(2), decoder_request(2)["workload"]
    plan_ids = [
        plan(two),
        plan({**two, "workload": {**workload, "micro_batch": 2 * workload["micro_batch"]}}),
        plan(decoder_request(4)),
    ]
    tiny = {**CLUSTER, "name": "too small"}
    tiny["node_groups"] = [{**group, "device_memory_bytes": 2**28} for group in CLUSTER["node_groups"]]
    infeasible_id = plan({**two, "cluster": tiny})
    for plan_id in plan_ids[:2]:
        answer = http.post("/v1/lineages", json={"name": "small-decoder", "plan": plan_id, "why": "first trial"})
        assert answer.status_code in (200, 201), answer.text
    return Site(server=server, plan_ids=plan_ids, infeasible_id=infeasible_id, lineage="small-decoder")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path_factory.mktemp('site') / 'site.db'}"
    server = Server(url, {"SHARDWRIGHT_REGENERATION_POLL_S": "0.1"})
    yield fill(server)
    server.end()


@pytest.fixture(scope="session")
def browser() -> Iterator:
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
