"""Drawn configurations of a small ladder: recorded programs and peaks against the predicted ones, to the byte.

A ladder has one matrix a unit and hardly any activations, so that a buffer which lives one moment longer than
predicted shows in the peak. Run from the repository: `python -m benchmarks.ladder_matrix`; `--seed` draws others.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from benchmarks.fsdp2_figures import BUILD
from planner.program.predicted import predicted_outline
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Decisions,
    GradientSync,
    MeshPlan,
    ModelDescription,
    RuntimeKnobs,
    ShardwrightError,
    UnitPlan,
    Workload,
)
from planner.simulate.peaks import predicted_peaks
from runtime_client.describe import describe, load_target
from runtime_client.dryrun import DryRunError, DryRunJob, MemoryRecord, run_isolated
from runtime_client.dryrun.compare import compare

BATCH = 10
BLOCKS = tuple(f"layers.{index}" for index in range(4))
MESHES = ((1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (4, 1), (1, 1))
PRECISIONS: tuple[tuple[str, dict[str, str]], ...] = (
    ("float32", {}),
    ("float32", {"param_dtype": "bfloat16", "reduce_dtype": "float32"}),
    ("bfloat16", {"param_dtype": "bfloat16", "reduce_dtype": "float32"}),
    ("float32", {"reduce_dtype": "bfloat16"}),
    ("float32", {"param_dtype": "bfloat16"}),
    ("float32", {"param_dtype": "bfloat16", "reduce_dtype": "float32", "output_dtype": "float32"}),
)
"""Storage, and the types of `Decisions`."""
SLACK_BYTES = 2048
"""Scalars of the optimizer, and labels."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A configuration."""

    stored: str
    tokens: int
    decisions: Decisions

    def job(self, record: str) -> DryRunJob:
        """Its dry run."""
        return DryRunJob(
            record=record,
            build=BUILD,
            arguments={"num_blocks": len(BLOCKS), "stored": self.stored},
            decisions=self.decisions,
            sequence=self.tokens,
        )

    def __str__(self) -> str:
        decisions = self.decisions
        units = [
            f"{unit.modules[0] or 'root'}:{unit.reshard_after_forward}/{unit.reshard_after_backward}"
            f"/{len(unit.forward_prefetch)}"
            for unit in decisions.units
        ]
        return (
            f"{decisions.mesh.replicate}x{decisions.mesh.shard} {self.stored} {decisions.param_dtype} "
            f"{decisions.reduce_dtype} {decisions.output_dtype} M={decisions.num_micro_batches} "
            f"{decisions.runtime.gradient_sync} K={decisions.runtime.reduce_scatter_max_input_buffers} "
            f"{self.tokens} tokens, {len(decisions.activations)} checkpointed, {' '.join(units)}"
        )


def drawn(random: Random) -> Drawn:
    """One configuration, every knob drawn on its own."""
    replicate, shard = random.choice(MESHES)
    stored, types = random.choice(PRECISIONS)
    num = random.choice((1, 1, 2, 3))
    sync = random.choice(tuple(GradientSync)) if num > 1 else GradientSync.EVERY_MICRO_BATCH
    checkpointed = random.choice(((), BLOCKS, BLOCKS[::2]))
    decisions = Decisions(
        mesh=MeshPlan(replicate=replicate, shard=shard),
        units=tuple(_units(random, shard, num)),
        activations=tuple(ActivationPlan(module=path, policy=ActivationPolicy.FULL) for path in checkpointed),
        micro_batch=1,
        num_micro_batches=num,
        runtime=RuntimeKnobs(gradient_sync=sync, reduce_scatter_max_input_buffers=random.choice((1, 1, 2, 3))),
        **types,
    )
    return Drawn(stored=stored, tokens=random.choice((16, 16, 256)), decisions=decisions)


def _units(random: Random, shard: int, num: int) -> Iterator[UnitPlan]:
    depth = random.choice((0, 0, 1, 2, 3))
    ways: list[bool | int] = [True, False, *(ranks for ranks in (2, 4) if ranks < shard and shard % ranks == 0)]
    for index, path in enumerate(BLOCKS):
        yield UnitPlan(
            modules=(path,),
            reshard_after_forward=random.choice(ways),
            reshard_after_backward=num == 1 or random.random() < 0.7,
            forward_prefetch=BLOCKS[index + 1 : index + 1 + depth],
            backward_prefetch=BLOCKS[max(0, index - depth) : index][::-1],
        )
    own = ("embedding", "head") if random.random() < 0.6 else ()
    yield from (UnitPlan(modules=(path,)) for path in (*own, ""))


@cache
def description(stored: str, tokens: int, param_dtype: Any) -> ModelDescription:  # noqa: ANN401 - DType or None
    """Of a ladder, made once for each kind."""
    build = load_target(BUILD)
    return describe(
        lambda: build(num_blocks=len(BLOCKS), stored=stored),  # type: ignore[call-arg]
        name="ladder",
        micro_batch=1,
        sequence=tokens,
        param_dtype=param_dtype,
    )


def differences(one: Drawn, program: Any, memory: MemoryRecord) -> list[str]:  # noqa: ANN401 - an outline
    """In what the prediction differs from the recording."""
    decisions = one.decisions
    model = description(one.stored, one.tokens, decisions.param_dtype)
    batch = decisions.num_micro_batches * decisions.mesh.num_ranks
    workload = Workload(micro_batch=1, sequence=one.tokens, global_batch=batch)
    peaks = predicted_peaks(model, decisions, workload)
    found = compare(predicted_outline(model, decisions, sequence=one.tokens), program)
    texts = [str(difference) for difference in found.differences[:2]]
    for phase, predicted, recorded in (
        (f"peak, predicted at {peaks.micro_batch.moment}", peaks.micro_batch, memory.micro_batch),
        ("optimizer step", peaks.optimizer, memory.optimizer),
    ):
        over = predicted.total_bytes - recorded.total_bytes
        if abs(over) > SLACK_BYTES:
            place = recorded.modules[-1] if recorded.modules else "final callback"
            texts.append(
                f"{over:+} bytes of {recorded.total_bytes}: {phase}, recorded at {recorded.operation}, {place}"
            )
    return texts


def run(batch: Sequence[Drawn]) -> Iterator[list[str]]:
    """Differences of each configuration, dry-run in one process."""
    try:
        records = run_isolated([one.job(record) for one in batch for record in ("program", "memory")])
    except DryRunError as error:
        yield from [[f"not run: {error}"]] * len(batch)
        return
    for index, one in enumerate(batch):
        program, memory = records[2 * index : 2 * index + 2]
        assert isinstance(memory, MemoryRecord)
        try:
            yield differences(one, program, memory)
        except ShardwrightError as error:
            yield [f"not predicted: {error}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num", type=int, default=50, help="configurations")
    arguments = parser.parse_args()
    random = Random(arguments.seed)
    configurations = [drawn(random) for _ in range(arguments.num)]
    counted: Counter[bool] = Counter()
    for start in range(0, len(configurations), BATCH):
        batch = configurations[start : start + BATCH]
        for one, texts in zip(batch, run(batch), strict=True):
            counted[not texts] += 1
            print("equal    " if not texts else "DIFFERENT", one, flush=True)
            for text in texts:
                print("   ", text, flush=True)
    print(f"{counted[True]} equal, {counted[False]} different")
    return int(counted[False] > 0)


if __name__ == "__main__":
    sys.exit(main())
