"""How large and how slow the pages are: a plan of 1,000 blocks, and a list of 10,000 plans.

Run it as `python -m benchmarks.dashboard`. It fills a store of its own, starts a server on it and opens the pages
in Chromium. The plan of 1,000 blocks is written by hand, with its predictions: what is measured is the page, not
the search. Times are for this machine; compare them within one run. Results go to docs/measurements/dashboard.json.
"""

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from api.cli.by_hand import ByHand
from benchmarks.deep_models import ROOT, deep_model
from benchmarks.record import provenance
from planner import __version__
from planner.plan import input_hashes
from planner.schema import Certificate, ClusterDescription, Plan, PlanBody, PlanRequest, Workload
from planner.simulate import predict
from profiles_db import migrations, plans, requests
from profiles_db.engine import Database
from tests.api.http.server import Server

NUM_BLOCKS = 1_000
NUM_PLANS = 10_000
TENANT = "default"
OUTPUT = ROOT / "docs" / "measurements" / "dashboard.json"
ROW = "| {page} | {html_kib} | {total_kib} | {num_requests} | {interactive_ms} | {complete_ms} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A page, opened several times with an empty cache; medians."""

    page: str
    html_kib: int
    """The document itself, as it is."""
    total_kib: int
    """All that is sent, scripts packed."""
    num_requests: int
    interactive_ms: int
    """Until the document and its scripts are loaded (`domContentLoadedEventEnd`)."""
    complete_ms: int
    """Until what follows by itself is drawn: pictures of a step, which the first look has to replay."""


def request_for(num_blocks: int) -> PlanRequest:
    """Llama 3 8B with more blocks, on 64 devices."""
    cluster = (ROOT / "examples" / "clusters" / "h100-64.json").read_bytes()
    return PlanRequest(
        model=deep_model("llama-3-8b", num_blocks),
        cluster=ClusterDescription.from_json(cluster),
        workload=Workload(micro_batch=1, sequence=4096, global_batch=128),
    )


def plan_of(request: PlanRequest, *, name: str | None = None) -> Plan:
    """A plan by hand: every second block checkpointed, so that no decision is the same twice in a row."""
    decisions = ByHand(checkpoint=("*.*[02468]",), prefetch=1).decisions(request)
    predictions = predict(request, decisions)
    step_ns = predictions.step_time_ns
    body = PlanBody(
        name=name or request.model.name,
        outcome="feasible",
        model_fingerprint=request.model.fingerprint,
        world_size=request.cluster.num_devices,
        decisions=decisions,
        predictions=predictions,
        certificate=Certificate(value=step_ns, lower_bound=0, gap=1.0, status="provisional"),
        inputs=input_hashes(request),
        planner_version=__version__,
    )
    return Plan.of(body)


def fill(database_url: str, num_plans: int) -> str:
    """Store the deep plan and many small ones; returns the identity of the deep one."""
    database = Database(database_url)
    migrations.upgrade(database)
    deep, small = request_for(NUM_BLOCKS), request_for(2)
    plan, pattern = plan_of(deep), plan_of(small)
    with database.write() as session:
        for request in (deep, small):
            requests.put(session, TENANT, request, request.content_hash())
        for number in range(num_plans):
            body = pattern.body.model_copy(update={"name": f"job {number:05}"})
            plans.put(session, TENANT, Plan.of(body))
        plans.put(session, TENANT, plan)
    database.close()
    return plan.envelope.plan_id


def measure(browser: Any, url: str, page: str, path: str, drawn: str, times: int) -> Measured:  # noqa: ANN401
    """Open a page several times; `drawn` is there when it is complete."""
    found = [one for _ in range(times) for one in _opened(browser, url + path, drawn)]
    return Measured(page=page, **{name: round(statistics.median(one[name] for one in found)) for name in found[0]})


def _opened(browser: Any, address: str, drawn: str) -> Iterator[dict[str, float]]:  # noqa: ANN401
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    opened = context.new_page()
    opened.goto(address)
    opened.wait_for_selector(drawn, timeout=120_000)
    complete_ms = opened.evaluate("performance.now()")
    sent = opened.evaluate(
        "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
        ".map(one => [one.encodedBodySize, one.decodedBodySize, one.domContentLoadedEventEnd ?? 0])"
    )
    context.close()
    yield {
        "html_kib": sent[0][1] / 1024,
        "total_kib": sum(one[0] for one in sent) / 1024,
        "num_requests": len(sent),
        "interactive_ms": sent[0][2],
        "complete_ms": complete_ms,
    }


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=NUM_PLANS)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'dashboard.db'}"
        plan_id = fill(url, options.plans)
        server = Server(url, {})
        try:
            rows = _measured(server.url, plan_id, options.plans, options.times)
        finally:
            server.end()
    print("| page | document, KiB | sent in all, KiB | requests | interactive, ms | complete, ms |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in rows:
        print(ROW.format(**asdict(row)))
    record = {"provenance": provenance(), "rows": [asdict(row) for row in rows]}
    options.output.write_text(json.dumps(record, indent=1) + "\n")


def _measured(url: str, plan_id: str, num_plans: int, times: int) -> list[Measured]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or "/usr/bin/chromium"
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def look(page: str, path: str, drawn: str, number: int = times) -> Measured:
            return measure(browser, url, page, path, drawn, number)

        both = "main:has(memory-chart[data-ready]):has(streams-chart[data-ready])"
        rows = [
            look(f"plan of {NUM_BLOCKS:,} blocks, first look", f"/plans/{plan_id}", both, 1),
            look(f"plan of {NUM_BLOCKS:,} blocks", f"/plans/{plan_id}", both),
            look(f"what-if of {NUM_BLOCKS:,} blocks", f"/what-if?plan={plan_id}", "#new-step-time"),
            look(f"list of {num_plans:,} plans", "/plans", "main table"),
            look(f"list of {num_plans:,} plans, searched", "/plans?name=job+0999", "main table"),
        ]
        browser.close()
    return rows


if __name__ == "__main__":
    main()
