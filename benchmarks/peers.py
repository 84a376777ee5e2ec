"""Plans against published planners on the same models, budgets and cost model.

- `sac_milp` of torch: torch's own code decides what a small Llama recomputes, and the real FSDP2 code then does so
  in a dry run. Needs `pulp` (with its CBC) and `pwlf`.
- ProTrain and DeepCompile: their rules (`benchmarks/contenders.py`) against this planner confined to their knobs.

Writes `docs/measurements/peers.json` and fails when a plan is worse than a peer's. Run from the repository:
`python -m benchmarks.peers`.
"""

import argparse
import io
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import runtime_estimator
from torch.distributed._tools.ilp_utils import Graph, aggregate_stats, parse_module_info
from torch.distributed._tools.mem_tracker import MemTracker, _ModState
from torch.distributed._tools.sac_estimator import SACEstimator
from torch.utils import _runtime_estimation

from api.cli.by_hand import block_paths
from benchmarks import contenders, example_plans
from benchmarks.contenders import Outcome, beaten_by, by_hand, outcome, within
from benchmarks.predicted_peak import hugging_face
from benchmarks.record import provenance
from planner.catalog.devices import device
from planner.plan import make_plan
from planner.schema import ClientFeature, Decisions, DType, FixedChoice, PlanRequest, Precision, Workload
from runtime_client.describe import TrainingExample, describe
from runtime_client.dryrun import DryRunJob, MemoryRecord, run_isolated

OUTPUT = Path(__file__).parents[1] / "docs" / "measurements" / "peers.json"
MICRO_BATCH, SEQUENCE = 2, 512
ROOFLINE = "operator-level-cost-model"
CASES = (("gpt-2", "rtx4090-4"), ("llama-3-8b", "a100-16"), ("llama-3-8b", "h100-64"))
SHARES, SAC_SHARE = (0.3, 0.7), 0.25
"""Budgets, from the peak of the least that a peer may choose to that of the most."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A peer's rule, and what confines this planner to its knobs."""

    peer: str
    choose: Callable[[PlanRequest], tuple[Outcome | None, int]]
    activations: tuple[str, str]
    """Checkpointing where it takes the least memory, and the most; the same where it is given."""
    features: tuple[ClientFeature, ...]


_FULL, _PREFETCH = ClientFeature.CHECKPOINT_FULL, ClientFeature.PREFETCH
RULES = (
    Rule("ProTrain", contenders.protrain, ("all", "none"), (_FULL, _PREFETCH)),
    Rule("DeepCompile", partial(contenders.deepcompile, checkpointed=False), ("none", "none"), ()),
    Rule("DeepCompile, checkpointed", partial(contenders.deepcompile, checkpointed=True), ("all", "all"), (_FULL,)),
)


def llama(num_layers: int) -> TrainingExample:
    """A Llama of 13 million parameters a layer."""
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "vocab_size": 32000}
    return hugging_face(model_type="llama", num_hidden_layers=num_layers, num_key_value_heads=16, **sizes)


def request_for(num_layers: int) -> PlanRequest:
    """That Llama in float32 on 64 H100, one micro-batch a step."""
    base = example_plans.request_for("llama-3-8b", "h100-64")
    size = {"micro_batch": MICRO_BATCH, "sequence": SEQUENCE}
    model = describe(partial(llama, num_layers), name=f"llama-{num_layers}", param_dtype=None, **size)
    precision = Precision(param_dtype=None, reduce_dtype=None)
    workload = Workload(global_batch=MICRO_BATCH * base.cluster.num_devices, precision=precision, **size)
    return base.model_copy(update={"model": model, "workload": workload})


def traced_graph(num_layers: int) -> Graph:
    """What `sac_milp` takes, by torch's own trackers on a CPU; their roofline gets the data sheet of an H100.

    torch's `aggregate_stats` fails for modules without a backward (rotary embeddings), so these are left out.
    """
    sheet = device("H100-80G")
    stub = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True), Tensor=torch.Tensor)
    tracker, estimator, sac = MemTracker(), runtime_estimator.RuntimeEstimator(), SACEstimator()
    with (
        patch.object(runtime_estimator, "torch", stub),
        patch.object(_runtime_estimation, "get_device_tflops", lambda _: sheet.flops_per_s[DType.FLOAT32] / 1e12),
        patch.object(_runtime_estimation, "get_gpu_dram_gbps", lambda: sheet.memory_bytes_per_s / 1e9),
        redirect_stdout(io.StringIO()),
        FakeTensorMode(),
    ):
        example = llama(num_layers)
        args, kwargs = example.inputs(MICRO_BATCH, SEQUENCE)
        tracker.track_external(example.model, *kwargs.values())
        for context in (nullcontext(), tracker, estimator(ROOFLINE)):
            with context:
                example.loss(example.model(*args, **kwargs), args, kwargs).backward()
            example.model.zero_grad()
        with sac(ROOFLINE):
            example.loss(example.model(*args, **kwargs), args, kwargs)
    for module, stats in list(tracker.memory_tracking.items()):
        if _ModState.PRE_BW not in stats.snapshots:
            del tracker.memory_tracking[module]
            estimator.mod_fw_pre_order.remove(stats.mod_fqn)
            estimator.mod_fw_post_order.remove(stats.mod_fqn)
    return parse_module_info(aggregate_stats(example.model, tracker, estimator, sac, torch.device("cpu")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """What `sac_milp` decided.

    It keeps any share of a block's activations, and a plan what some operations make: each share is rounded to the
    next set of operations that keeps no more, so that memory is in its favour.
    """

    stated_budget_bytes: int
    """What it was given, and what it states as its peak."""
    recorded_peak_bytes: int
    num_checkpointed: int
    predicted: Outcome
    least_step_time_ns: int
    """Where each share is rounded to the next set that keeps no less."""
    seconds: float
    """CBC stops after 180 s, and `sac_milp` takes what it has."""


def recomputation(graph: Graph, request: PlanRequest, budget_bytes: int) -> Recomputation | None:
    """Run `sac_milp` with the blocks as units of FSDP2 and of checkpointing; None where it finds nothing."""
    from torch.distributed._tools.sac_ilp import sac_milp

    root, world = graph.nodes[0]["fqn"], request.cluster.num_devices
    blocks = [f"{root}.{path}" for path in block_paths(request)]
    started = monotonic()
    shares, _, peak_bytes = sac_milp(graph, budget_bytes / 2**30, world, ac_units=blocks, fsdp_units=blocks)
    seconds = round(monotonic() - started, 2)
    if peak_bytes < 0:
        return None
    made = {name: graph.name2node[name]["sac_memory"] for name in shares}
    kept = {name.removeprefix(f"{root}."): made[name] * (1 - share) for name, share in shares.items()}
    lean, quick = (
        by_hand(request).model_copy(
            update={"activations": contenders.nearest_activations(request, kept, lean=lean)}
        )
        for lean in (True, False)
    )
    return Recomputation(
        stated_budget_bytes=budget_bytes,
        recorded_peak_bytes=recorded_peak_bytes(len(blocks), lean),
        num_checkpointed=len(shares),
        predicted=outcome(request, "sac_milp", lean),
        least_step_time_ns=outcome(request, "sac_milp", quick).step_time_ns,
        seconds=seconds,
    )


def recorded_peak_bytes(num_layers: int, decisions: Decisions) -> int:
    """Most that the real FSDP2 code allocates in a step, the optimizer's included."""
    build, size = f"{Path(__file__).resolve()}:{llama.__name__}", {"num_layers": num_layers}
    (record,) = run_isolated([DryRunJob(build=build, arguments=size, decisions=decisions, sequence=SEQUENCE)])
    assert isinstance(record, MemoryRecord)
    return record.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A peer and this planner within one budget."""

    peer: str
    case: str
    budget_bytes: int
    peer_step_time_ns: int | None
    """None where nothing that the peer finds fits."""
    peer_s: float
    plan_step_time_ns: int
    plan_gap: float
    plan_s: float
    problem: str | None
    details: dict[str, object]

    def line(self) -> str:
        """Row of a markdown table."""
        step = f"{self.peer_step_time_ns / self.plan_step_time_ns:.3f}" if self.peer_step_time_ns else "no fit"
        times = f"{self.peer_s:.2f} | {self.plan_s:.2f} | {self.peer_s / self.plan_s:.1f}"
        return f"| {self.peer} | {self.case} | {self.budget_bytes / 2**30:.2f} | {step} | {times} |"


HEADER = """| peer | case | budget, GiB | its step over ours | its s | our s | its s over ours |
|---|---|---:|---:|---:|---:|---:|"""


def compared(
    peer: str, case: str, request: PlanRequest, found: Outcome | None, took_s: float
) -> tuple[Row, Decisions]:
    """Plan a request, and set beside it what a peer found."""
    started = monotonic()
    body = make_plan(request).body
    plan_s = monotonic() - started
    assert body.decisions is not None
    assert body.certificate is not None
    row = Row(
        peer=peer,
        case=case,
        budget_bytes=request.limits.memory_bytes or 0,
        peer_step_time_ns=found.step_time_ns if found else None,
        peer_s=round(took_s, 3),
        plan_step_time_ns=body.certificate.value,
        plan_gap=body.certificate.gap,
        plan_s=round(plan_s, 3),
        problem=beaten_by(body, [found] if found else []),
        details={},
    )
    return row, body.decisions


def against_sac_milp(num_layers: int) -> Row:
    """Within a budget between the peaks of full checkpointing and of none.

    `sac_milp` leaves out gathered parameters, their gradients, buffers and optimizer state: it gets a second try
    with a budget lower by what its constraints miss of the recorded peak without recomputation.
    """
    started = monotonic()
    request = request_for(num_layers)
    described = monotonic()
    graph = traced_graph(num_layers)
    seconds = {"describe": round(described - started, 2), "trace": round(monotonic() - described, 2)}
    request = within(request, SAC_SHARE, by_hand(request, activation="all"), by_hand(request))
    budget, world = request.limits.memory_bytes or 0, request.cluster.num_devices
    parameters = graph.nodes[0]["param_per_module"]
    modelled = max(
        node["act_total"] + node["act_grad_per_module"] + (parameters + node["grad_total"]) // world
        for node in graph.nodes
    )
    missing = recorded_peak_bytes(num_layers, by_hand(request)) - modelled
    tries = [recomputation(graph, request, size) for size in (budget, budget - missing)]
    fitting = [entry.predicted for entry in tries if entry and entry.recorded_peak_bytes <= budget]
    best = min(fitting, key=lambda one: one.step_time_ns, default=None)
    took_s = max(entry.seconds for entry in tries if entry)
    row, decisions = compared("sac_milp", f"{num_layers} layers", request, best, took_s)
    recorded = recorded_peak_bytes(num_layers, decisions)
    details = {"seconds": seconds, "missing_bytes": missing, "tries": tries, "plan_recorded_peak_bytes": recorded}
    return replace(row, details=details)


def against(rule: Rule, model: str, cluster: str, share: float) -> Row:
    """A rule, and this planner with the same knobs: fully sharded, one micro-batch a step, searched to the end."""
    request = example_plans.request_for(model, cluster)
    world = request.cluster.num_devices
    workload = request.workload.model_copy(update={"global_batch": world * request.workload.micro_batch})
    fixed: dict[str, int | str] = {"mesh.shard": world, "units.embedding": False, "units.head": False}
    if rule.activations == ("all", "all"):
        fixed["*.activation"] = "full"
    choices = tuple(FixedChoice(knob=knob, value=value) for knob, value in fixed.items())
    search = request.search.model_copy(update={"gap": 0.0})
    confined = {"fixed": choices, "client_features": rule.features, "search": search}
    request = request.model_copy(update={"workload": workload, **confined})
    least, most = rule.activations
    largest = by_hand(request, reshard=False, activation=most)
    request = within(request, share, by_hand(request, activation=least), largest)
    started = monotonic()
    best, predictions = rule.choose(request)
    row, _ = compared(rule.peer, f"{model}, {cluster}", request, best, monotonic() - started)
    return replace(row, details={"chosen": best, "predictions": predictions})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="*", default=(8, 16, 24, 32), help="of the Llama for sac_milp")
    parser.add_argument("--cases", type=int, default=len(CASES), help="how many of the cases of the rules")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    runs = [partial(against_sac_milp, layers) for layers in options.layers]
    cases = product(CASES[: options.cases], RULES, SHARES)
    runs += [partial(against, rule, *case, share) for case, rule, share in cases]
    print(HEADER)
    rows = []
    for run in runs:
        rows.append(run())
        print(rows[-1].line(), flush=True)
    document = provenance() | {"rows": [asdict(row) for row in rows]}
    text = json.dumps(document, indent=1, default=lambda breakdown: breakdown.model_dump())
    options.output.write_text(text + "\n")
    problems = [f"{row.peer}, {row.case}: {row.problem}" for row in rows if row.problem]
    print("\n".join(problems) or "no peer is faster than a proven bound")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
