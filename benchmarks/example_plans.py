"""Plan every example model on every example cluster; print a table and write docs/measurements/example-plans.json.

    python -m benchmarks.example_plans
"""

import argparse
import json
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


def request_for(model: str, cluster: str) -> PlanRequest:
    """AdamW, bf16 with fp32 reduction, micro-batch 1."""
    return PlanRequest(
        model=ModelDescription.from_json((ROOT / f"examples/models/{model}.json").read_bytes()),
        cluster=ClusterDescription.from_json((ROOT / f"examples/clusters/{cluster}.json").read_bytes()),
        workload=Workload(micro_batch=1, sequence=MODELS[model], global_batch=GLOBAL_BATCH),
    )


def row(model: str, cluster: str, body: PlanBody, seconds: float) -> dict[str, object]:
    """One line of the table."""
    common: dict[str, object] = {
        "model": model,
        "cluster": cluster,
        "outcome": body.outcome,
        "seconds": round(seconds, 1),
    }
    if body.infeasibility is not None:
        return common | {
            "binding": str(body.infeasibility.binding),
            "needed_bytes": body.infeasibility.needed_bytes,
            "budget_bytes": body.infeasibility.budget_bytes,
            "fewest_ranks": body.infeasibility.fewest_ranks,
        }
    assert body.decisions is not None
    assert body.predictions is not None
    assert body.certificate is not None
    return common | {
        "mesh": f"{body.decisions.mesh.replicate} x {body.decisions.mesh.shard}",
        "checkpointed": len(body.decisions.activations),
        "kept": sum(unit.reshard_after_forward is False for unit in body.decisions.units),
        "step_time_ns": body.predictions.step_time_ns,
        "reserved_bytes": body.predictions.peak.reserved_bytes,
        "budget_bytes": body.predictions.budget.budget_bytes,
        "mfu": round(body.predictions.model_flops_utilization, 3),
        "gap": body.certificate.gap,
        "candidates": body.certificate.num_candidates,
        "pruned": body.certificate.num_pruned,
    }


def main() -> None:
    """Run the matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs/measurements/example-plans.json")
    options = parser.parse_args()
    rows = []
    for model in MODELS:
        for cluster in CLUSTERS:
            started = monotonic()
            body = make_plan(request_for(model, cluster)).body
            rows.append(row(model, cluster, body, monotonic() - started))
            print(_line(rows[-1]), flush=True)
            certificate = body.certificate
            assert certificate is None or certificate.gap <= MAX_GAP, rows[-1]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"provenance": provenance(), "rows": rows}, indent=1) + "\n")


def _line(entry: dict[str, object]) -> str:
    head = f"| {entry['model']} | {entry['cluster']} | "
    if entry["outcome"] == "infeasible":
        needed, budget = entry["needed_bytes"], entry["budget_bytes"]
        assert isinstance(needed, int)
        assert isinstance(budget, int)
        return (
            f"{head}infeasible: {entry['binding']} binds, {needed / 2**30:.1f} of {budget / 2**30:.1f} GiB, "
            f"fits on {entry['fewest_ranks']} ranks | {entry['seconds']} s |"
        )
    step, reserved, budget = entry["step_time_ns"], entry["reserved_bytes"], entry["budget_bytes"]
    gap = entry["gap"]
    assert isinstance(step, int)
    assert isinstance(reserved, int)
    assert isinstance(budget, int)
    assert isinstance(gap, float)
    return (
        f"{head}{entry['mesh']}, {entry['checkpointed']} checkpointed, {entry['kept']} kept | {step / 1e6:.1f} ms | "
        f"{reserved / 2**30:.1f} of {budget / 2**30:.1f} GiB | {gap:.2%} | {entry['seconds']} s |"
    )


if __name__ == "__main__":
    main()
