"""How long it takes to build and to replay the program of a large model.

Llama 3 405B (126 blocks) on 1,024 ranks is to take less than 50 ms together once warm, and the time is to grow with
the number of blocks. Times are CPU time of the process, the least and the median of some repetitions. Writes
`docs/measurements/program-speed.json` and fails when a goal is missed. Run from the repository:
`python -m benchmarks.program_speed`.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import process_time_ns
from typing import TypeVar

from benchmarks.deep_models import llama_405b
from benchmarks.record import provenance
from planner.costs import CostModel
from planner.program.build import build_program
from planner.program.inputs import knobs_of, partition_of, step_inputs
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    ClusterDescription,
    Decisions,
    DType,
    MeshPlan,
    ModelDescription,
    PlanRequest,
    UnitPlan,
    Workload,
)
from planner.simulate import replay

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "docs" / "measurements" / "program-speed.json"
RANKS = 1_024
BLOCKS = (32, 63, 126, 252, 1_000)
MODEL_BLOCKS = 126
GOAL_MS = 50.0
MOST_GROWTH = 1.6
"""Time for each block of the largest model over that of the model: garbage collection grows a little with size."""
REPETITIONS = 9

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Milliseconds for one number of blocks."""

    blocks: int
    events: int
    build_ms: float
    replay_ms: float
    build_median_ms: float
    replay_median_ms: float

    @property
    def total_ms(self) -> float:
        """Both, at their best."""
        return self.build_ms + self.replay_ms


def request_for(model: ModelDescription) -> PlanRequest:
    """Training on 128 nodes of 8 H100."""
    text = (ROOT / "examples" / "clusters" / "h100-64.json").read_text()
    cluster = ClusterDescription.from_json(text)
    (group,) = cluster.node_groups
    group = group.model_copy(update={"num_nodes": RANKS // group.devices_per_node})
    return PlanRequest(
        model=model,
        cluster=cluster.model_copy(update={"node_groups": (group,)}),
        workload=Workload(micro_batch=1, sequence=4_096, global_batch=RANKS),
    )


def decisions_for(num_blocks: int) -> Decisions:
    """Each block a unit, checkpointed."""
    blocks = [f"model.layers.{number}" for number in range(num_blocks)]
    return Decisions(
        mesh=MeshPlan(shard=RANKS),
        units=(*(UnitPlan(modules=(path,)) for path in blocks), UnitPlan(modules=("",))),
        activations=tuple(ActivationPlan(module=path, policy=ActivationPolicy.FULL) for path in blocks),
        param_dtype=DType.BFLOAT16,
        reduce_dtype=DType.FLOAT32,
        micro_batch=1,
        num_micro_batches=1,
    )


def timed(num_blocks: int) -> Timed:
    """Build and replay, each several times."""
    request, decisions = request_for(llama_405b(num_blocks)), decisions_for(num_blocks)
    costs = CostModel.of_plan(request, decisions)
    parts = partition_of(request.model, decisions)
    workload = decisions.decided(request.workload)
    knobs = knobs_of(decisions, parts)
    inputs = step_inputs(
        parts, workload, meshes=knobs.meshes, optimizer_bytes=0, optimizer_transient_bytes=0, decisions=decisions
    )
    program, build_ms = _times(lambda: build_program(inputs, knobs, costs))
    _, replay_ms = _times(lambda: replay(program))
    return Timed(
        blocks=num_blocks,
        events=len(program.events),
        build_ms=min(build_ms),
        replay_ms=min(replay_ms),
        build_median_ms=median(build_ms),
        replay_median_ms=median(replay_ms),
    )


def _times(run: Callable[[], Result]) -> tuple[Result, list[float]]:
    result = run()
    times = []
    for _ in range(REPETITIONS):
        start = process_time_ns()
        result = run()
        times.append(round((process_time_ns() - start) / 1e6, 2))
    return result, times


def missed(results: list[Timed]) -> list[str]:
    """Goals that were not reached."""
    (model,) = (result for result in results if result.blocks == MODEL_BLOCKS)
    largest = results[-1]
    growth = (largest.total_ms / largest.blocks) / (model.total_ms / model.blocks)
    problems = []
    if model.total_ms >= GOAL_MS:
        problems.append(f"{MODEL_BLOCKS} blocks take {model.total_ms:.1f} ms, not less than {GOAL_MS:.0f}")
    if growth > MOST_GROWTH:
        problems.append(f"a block of {largest.blocks} takes {growth:.2f} times as long as one of {model.blocks}")
    return problems


def main() -> int:
    results = []
    for num_blocks in BLOCKS:
        result = timed(num_blocks)
        results.append(result)
        print(
            f"{num_blocks:5} blocks, {result.events:6} events: build {result.build_ms:6.1f} ms, "
            f"replay {result.replay_ms:5.1f} ms, median {result.build_median_ms:6.1f} and "
            f"{result.replay_median_ms:5.1f} ms",
            flush=True,
        )
    problems = missed(results)
    record = {"goal_ms": GOAL_MS, "missed": problems, "results": [asdict(result) for result in results]}
    OUTPUT.write_text(json.dumps(provenance() | record, indent=1) + "\n")
    print("\n".join(problems) or "both goals reached")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
