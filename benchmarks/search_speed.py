"""How fast the search finds plans and proves them: deep models under one global choice, and whole searches.

Every run records its curve: seconds, best step time, bound. Seconds are CPU time, what a search takes where nothing
else runs; wall time and the load of the machine are recorded beside it. Goals are those of docs/measurements.md; a
missed one makes the command fail. Writes `docs/measurements/search-speed.json`. Run from the repository:
`python -m benchmarks.search_speed`.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from os import getloadavg
from pathlib import Path
from statistics import median
from time import monotonic, process_time

from benchmarks.deep_models import ROOT, deep_model, llama_405b
from benchmarks.record import provenance
from planner.found import Progress
from planner.schema import (
    ClusterDescription,
    FixedChoice,
    Limits,
    ModelDescription,
    PlanRequest,
    SearchLimits,
    Workload,
)
from planner.search import search
from planner.space.opened import Goal
from solver.schedule.problem import Aim

OUTPUT = ROOT / "docs" / "measurements" / "search-speed.json"
SEQUENCE = 4_096
ONE_CHOICE = (
    FixedChoice(knob="mesh.replicate", value=1),
    FixedChoice(knob="units.*", value=True),
    FixedChoice(knob="blocks_per_unit", value=1),
    FixedChoice(knob="split_blocks", value=False),
)
DEVICES_PER_NODE = 8
FIRST_GOAL_S = 3.0
"""Of every search, until its first plan."""
CURVE_S = (1, 2, 5, 10, 20, 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One search and what is asked of it."""

    name: str
    request: PlanRequest
    gap: float
    goal_s: float


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a search did."""

    name: str
    goal_gap: float
    goal_s: float
    first_s: float | None = None
    """CPU time of this process, which runs nothing beside the search, until the first plan."""
    reached_s: float | None = None
    """Until the gap that was asked for."""
    total_s: float = 0.0
    wall_s: float = 0.0
    load: float = 0.0
    """Programs that run or wait for a core, averaged over a minute, at the end."""
    step_ms: float | None = None
    gap: float | None = None
    num_regions: int = 0
    num_pruned: int = 0
    cp_sat_s: float = 0.0
    """Deterministic seconds: of CP-SAT on whole problems, and what opening problems counts for."""
    curve: list[tuple[float, float | None, float | None]] = field(default_factory=list)
    """CPU seconds, best step and bound in ms."""

    @property
    def missed(self) -> bool:
        """The goal was not reached in time."""
        return self.step_ms is not None and (self.reached_s is None or self.reached_s > self.goal_s)

    def line(self) -> str:
        """Row of the table."""
        if self.step_ms is None:
            return f"| {self.name} | nothing fits | | | | {self.total_s:.1f} s |"
        first = "at the end" if self.first_s is None else f"{self.first_s:.1f} s"
        reached = "not" if self.reached_s is None else f"{self.reached_s:.1f} s"
        return (
            f"| {self.name} | {self.step_ms:.1f} ms | {self.gap:.2%} | {first} | "
            f"{reached} (goal {self.goal_gap:.1%} in {self.goal_s:.0f} s) | {self.total_s:.1f} s |"
        )


HEADER = "| case | step | gap | first plan | goal reached | whole search |\n|---|---|---|---|---|---|"


def cluster(num_devices: int) -> ClusterDescription:
    """Nodes of eight H100."""
    text = (ROOT / "examples" / "clusters" / "h100-64.json").read_text()
    known = ClusterDescription.from_json(text)
    (group,) = known.node_groups
    nodes = group.model_copy(
        update={"num_nodes": num_devices // DEVICES_PER_NODE, "devices_per_node": DEVICES_PER_NODE}
    )
    return known.model_copy(update={"node_groups": (nodes,), "name": f"h100-{num_devices}"})


def request_for(model: ModelDescription, num_devices: int, *, gap: float) -> PlanRequest:
    """AdamW, bf16 with fp32 reduction, one sequence a rank and step."""
    return PlanRequest(
        model=model,
        cluster=cluster(num_devices),
        workload=Workload(micro_batch=1, sequence=SEQUENCE, global_batch=num_devices),
        search=SearchLimits(gap=gap, deterministic_time=200.0),
    )


def one_choice(only: str) -> Iterator[Case]:
    """Mesh and grouping fixed, everything else open, at about half of the memory that is left."""
    for source, blocks, num_devices, gap, goal_s in (
        ("llama-3-70b", 32, 64, 0.005, 5),
        ("llama-3-70b", 80, 256, 0.005, 10),
        ("llama-3-70b", 126, 512, 0.005, 20),
        ("llama-3-8b", 1_000, 1_024, 0.02, 60),
    ):
        name = f"{blocks} blocks, one mesh and grouping"
        if only in name:
            yield _one_choice(name, request_for(deep_model(source, blocks), num_devices, gap=gap), gap, goal_s)


def _one_choice(name: str, request: PlanRequest, gap: float, goal_s: float) -> Case:
    fixed = request.model_copy(update={"fixed": ONE_CHOICE})
    (half,) = limited(fixed, 0.5)
    return Case(name=name, request=half, gap=gap, goal_s=goal_s)


def limited(request: PlanRequest, *shares: float) -> list[PlanRequest]:
    """The request with budgets between the leanest plan's need (share 0) and what the device has (share 1)."""
    found = search(request, goal=Goal(aim=Aim.MEMORY, is_budgeted=False))
    assert found.best is not None
    assert found.assignment is not None
    needed = found.best.heuristic.evaluate(found.assignment).needed
    budget = found.best.costs.budget.budget_bytes
    return [
        request.model_copy(update={"limits": Limits(memory_bytes=needed + int(share * max(0, budget - needed)))})
        for share in shares
    ]


MODELS = {
    "llama-3-8b": (20.0, (8, 64, 1_024, 16_384)),
    "qwen3-30b-a3b": (20.0, (8, 16, 64, 1_024, 16_384)),
    "llama-3-70b": (60.0, (8, 32, 256, 1_024, 16_384)),
    "llama-3-405b": (120.0, (512, 1_024, 4_096, 16_384)),
}
"""Goal in seconds, and numbers of devices."""
BUDGETS = {"tight": 0.3, "barely": 0.02}
"""Beside the roomy one, which is all that the device has."""


def whole(only: str) -> Iterator[Case]:
    """All global choices."""
    for name, (goal_s, sizes) in MODELS.items():
        for num_devices in sizes:
            titles = [f"{name} on {num_devices}, {word}" for word in ("roomy", *BUDGETS)]
            if not any(only in title for title in titles):
                continue
            request = request_for(_model(name), num_devices, gap=0.01)
            requests = [request, *limited(request, *BUDGETS.values())]
            for title, asked in zip(titles, requests, strict=True):
                if only in title:
                    yield Case(name=title, request=asked, gap=0.01, goal_s=goal_s)


def _model(name: str) -> ModelDescription:
    if name == "llama-3-405b":
        return llama_405b(126)
    return ModelDescription.from_json((ROOT / "examples" / "models" / f"{name}.json").read_bytes())


def run(case: Case) -> Outcome:
    """One search with its curve."""
    outcome = Outcome(name=case.name, goal_gap=case.gap, goal_s=case.goal_s)
    started, cpu = monotonic(), process_time()

    def note(progress: Progress) -> None:
        best, bound = progress.incumbent_ns, progress.bound_ns
        elapsed = round(process_time() - cpu, 2)
        outcome.curve.append(
            (elapsed, None if best is None else best / 1e6, None if bound is None else bound / 1e6)
        )
        if best is not None and outcome.first_s is None:
            outcome.first_s = elapsed
        if best and bound is not None and 1 - bound / best <= case.gap and outcome.reached_s is None:
            outcome.reached_s = elapsed

    found = search(case.request, note)
    outcome.total_s, outcome.wall_s = round(process_time() - cpu, 2), round(monotonic() - started, 2)
    outcome.load = round(getloadavg()[0], 1)
    outcome.num_regions, outcome.num_pruned = found.num_regions, found.num_pruned
    outcome.cp_sat_s = found.deterministic_time
    if found.best is not None and found.assignment is not None:
        step_ns = found.best.step_ns(found.best.heuristic.evaluate(found.assignment))
        outcome.step_ms, outcome.gap = step_ns / 1e6, max(0.0, 1 - found.lower_bound / step_ns)
        if outcome.reached_s is None and outcome.gap <= case.gap:
            outcome.reached_s = outcome.total_s
    return outcome


def gap_after(outcome: Outcome, seconds: float) -> float | None:
    """Gap that was proven by then; None before there were a plan and a bound."""
    if outcome.total_s <= seconds:
        return outcome.gap
    known = [(best, bound) for at, best, bound in outcome.curve if at <= seconds and best and bound]
    return max(0.0, 1 - known[-1][1] / known[-1][0]) if known else None


def curves(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Rows of a table: of each model's searches the median gap and the largest, over time."""
    yield "| model | " + " | ".join(f"{seconds} s" for seconds in CURVE_S) + " |"
    yield "|---" * (len(CURVE_S) + 1) + "|"
    for model in dict.fromkeys(outcome.name.partition(" on ")[0] for outcome in outcomes):
        own = [one for one in outcomes if one.name.startswith(f"{model} on ") and one.step_ms is not None]
        cells = []
        for seconds in CURVE_S:
            gaps = sorted(gap for one in own if (gap := gap_after(one, seconds)) is not None)
            without = f", {len(own) - len(gaps)} none" if len(gaps) < len(own) else ""
            cells.append(f"{median(gaps):.2%}, {gaps[-1]:.2%}{without}" if gaps else "none")
        if own:
            yield f"| {model}, {len(own)} searches | " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    outcomes = []
    print(HEADER, flush=True)
    for case in chain(one_choice(arguments.only), whole(arguments.only)):
        outcomes.append(run(case))
        print(outcomes[-1].line(), flush=True)
    print("", *curves(outcomes), sep="\n")
    document = {"where": provenance(), "outcomes": [asdict(outcome) for outcome in outcomes]}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    missed = [outcome.name for outcome in outcomes if outcome.missed]
    late = [outcome.name for outcome in outcomes if outcome.first_s is not None and outcome.first_s > FIRST_GOAL_S]
    for name in missed:
        print(f"missed: {name}", file=sys.stderr)
    for name in late:
        print(f"first plan after more than {FIRST_GOAL_S:.0f} s: {name}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
