"""Plan every example model on every example cluster; print a table and write docs/measurements/example-plans.json.

Run it as `python -m benchmarks.example_plans`.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from benchmarks.record import provenance
from planner.plan import make_plan
from planner.schema import ClusterDescription, ModelDescription, PlanBody, PlanRequest, Workload

ROOT = Path(__file__).resolve().parents[1]
MODELS = {
    "llama-3-8b": 4096,
    "llama-3-70b": 4096,
    "qwen3-30b-a3b": 4096,
    "gpt-2": 1024,
    "llama-3-8b-lora": 4096,
}
"""Sequence length of each model."""
CLUSTERS = ("h100-8", "h100-64", "rtx4090-4", "a100-16")
GLOBAL_BATCH = 64
MAX_GAP = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model on one cluster."""

    model: str
    cluster: str
    outcome: str
    words: str
    seconds: float
    step_time_ns: int | None = None
    peak_bytes: int | None = None
    budget_bytes: int | None = None
    gap: float | None = None
    num_candidates: int | None = None

    def line(self) -> str:
        """Row of a markdown table."""
        step = "" if self.step_time_ns is None else f"{self.step_time_ns / 1e6:.1f} ms"
        gap = "" if self.gap is None else f"{self.gap:.2%}"
        memory = f"{_gib(self.peak_bytes)} of {_gib(self.budget_bytes)}"
        cells = (self.model, self.cluster, self.words, step, memory, gap, f"{self.seconds:.1f} s")
        return f"| {' | '.join(cells)} |"


HEADER = """| model | cluster | plan | step | peak and budget, GiB | gap | search |
|---|---|---|---|---|---|---|"""


def request_for(model: str, cluster: str) -> PlanRequest:
    """AdamW, bf16 with fp32 reduction, micro-batch 1."""
    return PlanRequest(
        model=ModelDescription.from_json((ROOT / f"examples/models/{model}.json").read_bytes()),
        cluster=ClusterDescription.from_json((ROOT / f"examples/clusters/{cluster}.json").read_bytes()),
        workload=Workload(micro_batch=1, sequence=MODELS[model], global_batch=GLOBAL_BATCH),
    )


def row(model: str, cluster: str, body: PlanBody, seconds: float) -> Row:
    """What a plan says, for the table."""
    if body.infeasibility is not None:
        why = body.infeasibility
        ranks = f"fits on {why.fewest_ranks} ranks" if why.fewest_ranks else "more ranks alone do not help"
        return Row(
            model=model,
            cluster=cluster,
            outcome=body.outcome,
            words=f"infeasible, {why.binding} binds; {ranks}",
            seconds=seconds,
            peak_bytes=why.needed_bytes,
            budget_bytes=why.budget_bytes,
        )
    assert body.decisions is not None
    assert body.predictions is not None
    assert body.certificate is not None
    mesh = body.decisions.mesh
    kept = sum(unit.reshard_after_forward is False for unit in body.decisions.units)
    return Row(
        model=model,
        cluster=cluster,
        outcome=body.outcome,
        words=f"{mesh.replicate} x {mesh.shard}, {len(body.decisions.activations)} checkpointed, {kept} kept",
        seconds=seconds,
        step_time_ns=body.predictions.step_time_ns,
        peak_bytes=body.predictions.peak.reserved_bytes,
        budget_bytes=body.predictions.budget.budget_bytes,
        gap=body.certificate.gap,
        num_candidates=body.certificate.num_candidates,
    )


def main() -> None:
    """Run the matrix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs/measurements/example-plans.json")
    options = parser.parse_args()
    rows = []
    print(HEADER)
    for model in MODELS:
        for cluster in CLUSTERS:
            started = monotonic()
            body = make_plan(request_for(model, cluster)).body
            rows.append(row(model, cluster, body, round(monotonic() - started, 2)))
            print(rows[-1].line(), flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = {"provenance": provenance(), "rows": [asdict(entry) for entry in rows]}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    wide = [entry for entry in rows if entry.gap is not None and entry.gap > MAX_GAP]
    assert not wide, f"gaps over {MAX_GAP:.0%}: {wide}"


def _gib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 2**30:.1f}"


if __name__ == "__main__":
    main()
