"""Plans against what people use: FSDP2's defaults, the usual ways to checkpoint, and the best of a 100-point sweep.

Every contender is predicted by the same cost model, and fits or not within the same budget. Prints a markdown
table, writes `docs/measurements/defaults.json`, and fails when a contender that fits is faster than the bound that
the plan proves: when the plan is slower by more than its gap. Run from the repository:
`python -m benchmarks.defaults`.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic

from benchmarks import example_plans, program_speed
from benchmarks.contenders import Outcome, beaten_by, fastest, gained, grid, hand_written, outcome
from benchmarks.record import provenance
from planner.plan import make_plan
from planner.schema import Limits, PlanBody, PlanRequest

OUTPUT = Path(__file__).parents[1] / "docs" / "measurements" / "defaults.json"
GIB = 2**30
BUDGETS = {"roomy": None, "half": 0.5, "barely": 0.02}
"""Share of the way from the least peak of any contender to that of FSDP2's defaults (or to what the cluster leaves,
if that is less); None is what the cluster leaves."""
SWEEP = "best of the sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model on a cluster."""

    model: str
    cluster: str
    num_nodes: int
    inter_node: str | None = None
    """Link between nodes, where the cluster's file has none."""

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.model}, {self.num_nodes} x {self.cluster.rpartition('-')[0]}"

    def request(self) -> PlanRequest:
        """AdamW, bf16 with fp32 reduction, micro-batch 1, at least 64 sequences."""
        if self.model == "llama-3-405b":
            base = program_speed.request_for(program_speed.llama_405b(program_speed.MODEL_BLOCKS))
        else:
            base = example_plans.request_for(self.model, self.cluster)
        (group,) = base.cluster.node_groups
        cluster = base.cluster.model_copy(
            update={
                "node_groups": (group.model_copy(update={"num_nodes": self.num_nodes}),),
                "inter_node": self.inter_node or base.cluster.inter_node,
            }
        )
        batch = max(example_plans.GLOBAL_BATCH, cluster.num_devices)
        workload = base.workload.model_copy(update={"global_batch": batch})
        return base.model_copy(update={"cluster": cluster, "workload": workload})


JOBS = (
    Job(model="llama-3-8b", cluster="h100-8", num_nodes=1),
    Job(model="llama-3-8b", cluster="h100-64", num_nodes=2),
    Job(model="llama-3-8b", cluster="a100-16", num_nodes=2),
    Job(model="llama-3-8b", cluster="rtx4090-4", num_nodes=4, inter_node="ethernet-100"),
    Job(model="llama-3-70b", cluster="h100-64", num_nodes=8),
    Job(model="llama-3-70b", cluster="h100-64", num_nodes=32),
    Job(model="qwen3-30b-a3b", cluster="h100-64", num_nodes=8),
    Job(model="qwen3-30b-a3b", cluster="a100-16", num_nodes=4),
    Job(model="gpt-2", cluster="rtx4090-4", num_nodes=1),
    Job(model="llama-3-8b-lora", cluster="rtx4090-4", num_nodes=1),
    Job(model="llama-3-405b", cluster="h100-64", num_nodes=program_speed.RANKS // 8),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One contender within a budget."""

    name: str
    configuration: str
    step_time_ns: int
    peak_bytes: int
    fits: bool
    ratio: float | None
    """Its step time over that of the plan."""

    def cell(self) -> str:
        """For the table: the ratio, or the GiB that do not fit."""
        return f"{self.ratio:.3f}" if self.fits and self.ratio else f"needs {self.peak_bytes / GIB:.1f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case."""

    case: str
    budget: str
    budget_bytes: int
    plan_step_time_ns: int | None
    gap: float | None
    seconds: float
    """What planning took."""
    scores: list[Score] = field(default_factory=list)
    num_swept: int
    against: str | None
    """The fastest contender that fits."""
    gain: str
    """Where the plan's time differs from the fastest contender's."""
    problem: str | None

    def line(self) -> str:
        """Row of a markdown table."""
        step = "none" if self.plan_step_time_ns is None else f"{self.plan_step_time_ns / 1e6:.1f}"
        gap = "" if self.gap is None else f"{self.gap:.2%}"
        scores = [score.cell() for score in self.scores]
        budget = f"{self.budget}, {self.budget_bytes / GIB:.1f}"
        return f"| {' | '.join([self.case, budget, step, gap, *scores, self.gain])} |"


HEADER = """| case | budget, GiB | plan, ms | gap | defaults | full | selective | every second | sweep | from |
|---|---|---:|---:|---:|---:|---:|---:|---:|---|"""


def rows(job: Job) -> Iterator[Row]:
    """A job within each budget; contenders are predicted once, for no budget changes them."""
    request = job.request()
    by_name, swept = (
        [outcome(request, name, decisions) for name, decisions in contenders.items()]
        for contenders in (hand_written(request), grid(request))
    )
    room = by_name[0].budget_bytes
    least = min(one.peak_bytes for one in (*by_name, *swept))
    most = min(by_name[0].peak_bytes, room)
    for budget, share in BUDGETS.items():
        limit = None if share is None else least + int(share * (most - least))
        if limit is None or least < limit < room:
            yield row(request, job.name, budget, limit, by_name, swept)


def row(
    request: PlanRequest,
    case: str,
    budget: str,
    limit_bytes: int | None,
    by_name: list[Outcome],
    swept: list[Outcome],
) -> Row:
    """Plan a case and compare."""
    started = monotonic()
    body = make_plan(request.model_copy(update={"limits": Limits(memory_bytes=limit_bytes)})).body
    seconds = round(monotonic() - started, 2)
    everybody = [*by_name, *swept]
    best, plan = fastest(everybody, limit_bytes), body.predictions
    swept_best = fastest(swept, limit_bytes) or min(swept, key=lambda one: one.peak_bytes)
    named = [(one.name, one) for one in by_name] + [(SWEEP, swept_best)]
    return Row(
        case=case,
        budget=budget,
        budget_bytes=limit_bytes or by_name[0].budget_bytes,
        plan_step_time_ns=plan.step_time_ns if plan else None,
        gap=body.certificate.gap if body.certificate else None,
        seconds=seconds,
        scores=[_score(name, one, limit_bytes, body) for name, one in named],
        num_swept=len(swept),
        against=best.name if best else None,
        gain=gained(plan.breakdown, best.breakdown) if plan and best else "nothing else fits",
        problem=beaten_by(body, everybody, limit_bytes),
    )


def _score(name: str, one: Outcome, limit_bytes: int | None, body: PlanBody) -> Score:
    plan = body.predictions
    return Score(
        name=name,
        configuration=one.name,
        step_time_ns=one.step_time_ns,
        peak_bytes=one.peak_bytes,
        fits=one.fits(limit_bytes),
        ratio=round(one.step_time_ns / plan.step_time_ns, 5) if plan else None,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    print(HEADER)
    found = []
    for job in JOBS:
        if options.only in job.name:
            for entry in rows(job):
                found.append(entry)
                print(entry.line(), flush=True)
    result = provenance() | {"rows": [asdict(entry) for entry in found]}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    problems = [f"{entry.case}, {entry.budget}: {entry.problem}" for entry in found if entry.problem]
    print("\n".join(problems) or "no contender is faster than a proven bound")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
