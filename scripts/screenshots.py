"""Pictures of every page of the dashboard, light and dark, narrow and wide, of a server with real plans.

Run as `python -m scripts.screenshots FOLDER [NAME ...]` from the root of the repository.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.api.http.server import Server, decoder_request
from tests.browser.conftest import CHROMIUM
from tests.browser.site import Site, fill, regenerate

WIDTHS = (390, 1440)
SCHEMES = ("light", "dark")


def main() -> None:
    folder, only = Path(sys.argv[1]), set(sys.argv[2:])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        server = Server(f"sqlite:///{place}/site.db", {"SHARDWRIGHT_REGENERATION_POLL_S": "0.1"})
        try:
            take(folder, dict(pages(fill(server))), only)
        finally:
            server.end()


def take(folder: Path, addresses: dict[str, str], only: set[str]) -> None:
    chosen = {name: address for name, address in addresses.items() if not only or name in only}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in WIDTHS:
            for scheme in SCHEMES:
                shoot(browser, folder, chosen, width, scheme)
        browser.close()


def shoot(browser: Browser, folder: Path, addresses: dict[str, str], width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    for name, address in addresses.items():
        answer = page.goto(address)
        assert answer is not None, address
        assert answer.status < 500, f"{address}: {answer.status}"
        page.wait_for_load_state("load")
        page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
    context.close()


def pages(site: Site) -> Iterator[tuple[str, str]]:
    """Names and addresses of all pages, with something on each."""
    lost = [{"change": "nodes_lost", "num_nodes": 1}]
    regeneration = regenerate(site, lost, why="rack 7 lost power", policy={"activate_within_percent": None})
    running = site.post("/v1/plans?wait=0", decoder_request(48))["job_id"]
    paths = {
        "overview": "/",
        "plans": "/plans",
        "plans-filtered": "/plans?outcome=infeasible&sort=ranks",
        "plan": f"/plans/{site.plan_ids[0]}",
        "compare": f"/compare?before={site.plan_ids[0]}&after={site.plan_ids[1]}",
        "what-if": "/what-if",
        "lineages": "/lineages",
        "lineage": f"/lineages/{site.lineage}",
        "clusters": "/clusters",
        "cluster": "/clusters/two nodes of eight",
        "regenerations": "/regenerations",
        "regeneration": f"/regenerations/{regeneration}",
        "jobs": "/jobs",
        "job": f"/jobs/{running}",
        "error": "/nothing",
    }
    for name, path in paths.items():
        yield name, f"{site.url}{path}"


if __name__ == "__main__":
    main()
