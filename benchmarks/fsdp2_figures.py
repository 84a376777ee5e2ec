"""The figures of docs/fsdp2.md: what the real FSDP2 code allocates and issues, knob by knob.

The model is `benchmarks/ladder.py`; each configuration is dry-run as rank 0 of 64. Prints a markdown table for each
theme and writes `docs/measurements/fsdp2.json`. Run from the repository: `python -m benchmarks.fsdp2_figures`, with
`--only THEME` for one theme, or with `--program` for the recorded operations and edges of a small ladder.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.ladder import UNIT_BYTES
from benchmarks.record import provenance
from planner.program.outline import Outline, OutlineKind
from planner.program.predicted import predicted_outline
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Decisions,
    DType,
    GradientSync,
    MeshPlan,
    ModelDescription,
    OptimizerGroup,
    RuntimeKnobs,
    ShardDim,
    StateTier,
    UnitPlan,
    Workload,
)
from planner.simulate.peaks import predicted_peaks
from runtime_client.describe import describe, load_target
from runtime_client.dryrun import DryRunError, DryRunJob, MemoryRecord, run_isolated
from runtime_client.dryrun.compare import compare, compare_memory

OUTPUT = Path(__file__).parents[1] / "docs" / "measurements" / "fsdp2.json"
RANKS = 64
BUILD = "benchmarks.ladder:build"
MIB = 2**20
BF16_FP32 = {"param_dtype": DType.BFLOAT16, "reduce_dtype": DType.FLOAT32}
ADAMW = OptimizerGroup()
HYBRID = {"mesh": MeshPlan(replicate=8, shard=8)}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One configuration of a ladder."""

    theme: str
    name: str
    num_blocks: int = 8
    stored: str = "float32"
    tokens: int = 16
    reshard: bool | int | None = None
    """Of the blocks."""
    root_reshard: bool | None = None
    keep_after_backward: bool = False
    prefetch: int = 0
    tier: StateTier = StateTier.DEVICE
    checkpoint: bool = False
    own: tuple[str, ...] = ()
    """Further units."""
    optimizer: OptimizerGroup = ADAMW
    options: dict[str, Any] = field(default_factory=dict)
    """Other fields of `Decisions`."""
    runtime: dict[str, Any] = field(default_factory=dict)

    @property
    def blocks(self) -> list[str]:
        """Paths of the blocks."""
        return [f"layers.{index}" for index in range(self.num_blocks)]

    def decisions(self) -> Decisions:
        """What is applied and predicted."""
        full = ActivationPolicy.FULL
        return Decisions(
            **{"mesh": MeshPlan(shard=RANKS), "micro_batch": 1, "num_micro_batches": 1} | self.options,
            units=tuple(self._units()),
            activations=tuple(ActivationPlan(module=path, policy=full) for path in self.blocks if self.checkpoint),
            runtime=RuntimeKnobs(**self.runtime),
        )

    def _units(self) -> Iterator[UnitPlan]:
        common = {
            "reshard_after_backward": not self.keep_after_backward,
            "parameter_tier": self.tier,
            "optimizer_tier": self.tier,
        }
        paths, depth = self.blocks, self.prefetch
        for index, path in enumerate(paths):
            yield UnitPlan(
                modules=(path,),
                reshard_after_forward=self.reshard,
                forward_prefetch=tuple(paths[index + 1 : index + 1 + depth]),
                backward_prefetch=tuple(paths[max(0, index - depth) : index][::-1]),
                **common,
            )
        yield from (UnitPlan(modules=(path,), **common) for path in self.own)
        yield UnitPlan(modules=("",), reshard_after_forward=self.root_reshard, **common)

    def job(self, record: str) -> DryRunJob:
        """A dry run of it."""
        return DryRunJob(
            record=record,
            build=BUILD,
            arguments=self.arguments,
            decisions=self.decisions(),
            sequence=self.tokens,
            optimizer_groups=(self.optimizer,),
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the builder."""
        return {"num_blocks": self.num_blocks, "stored": self.stored}


def _micro_batches(**runtime: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of several models
    return {"options": {"num_micro_batches": 4}, "runtime": runtime}


LAST, ALL_REDUCE_ON_LAST = GradientSync.LAST_MICRO_BATCH, GradientSync.ALL_REDUCE_ON_LAST
FIGURES = (
    Figure(theme="resharding", name="default"),
    Figure(theme="resharding", name="blocks kept after forward", reshard=False),
    Figure(theme="resharding", name="root resharded too", root_reshard=True),
    Figure(theme="resharding", name="resharded to 8 of 64 ranks", reshard=8),
    Figure(theme="resharding", name="resharded to 2 of 64 ranks", reshard=2),
    Figure(theme="resharding", name="embedding and head units of their own", own=("embedding", "head")),
    *(Figure(theme="prefetch", name=f"depth {depth}", prefetch=depth) for depth in range(4)),
    *(
        Figure(theme="reduce inputs", name=f"K = {buffers}", runtime={"reduce_scatter_max_input_buffers": buffers})
        for buffers in (1, 2, 3, 16)
    ),
    Figure(theme="precision", name="float32 throughout"),
    Figure(theme="precision", name="bf16 parameters, float32 reduction", options=BF16_FP32),
    Figure(theme="precision", name="bf16 parameters and reduction", options={"param_dtype": DType.BFLOAT16}),
    Figure(theme="precision", name="float32 parameters, bf16 reduction", options={"reduce_dtype": DType.BFLOAT16}),
    Figure(theme="precision", name="stored in bf16", stored="bfloat16"),
    Figure(theme="precision", name="float16 parameters and reduction", options={"param_dtype": DType.FLOAT16}),
    Figure(
        theme="hybrid", name="64 shards, stored in bf16, float32 reduction", stored="bfloat16", options=BF16_FP32
    ),
    Figure(
        theme="hybrid",
        name="8 x 8, stored in bf16, float32 reduction",
        stored="bfloat16",
        options=HYBRID | BF16_FP32,
    ),
    Figure(theme="hybrid", name="8 x 8, stored in float32, float32 reduction", options=HYBRID | BF16_FP32),
    Figure(theme="hybrid", name="8 x 8, float32 throughout", options=HYBRID),
    Figure(theme="hybrid", name="64 x 1, float32 throughout", options={"mesh": MeshPlan(replicate=64, shard=1)}),
    Figure(theme="accumulation", name="reduced every time", **_micro_batches()),
    Figure(theme="accumulation", name="kept after forward", reshard=False, **_micro_batches()),
    Figure(theme="accumulation", name="kept after backward alone", keep_after_backward=True, **_micro_batches()),
    Figure(
        theme="accumulation", name="kept after both", reshard=False, keep_after_backward=True, **_micro_batches()
    ),
    Figure(theme="accumulation", name="reduced on the last", **_micro_batches(gradient_sync=LAST)),
    Figure(
        theme="accumulation",
        name="reduced on the last, bf16 parameters, float32 reduction",
        options={"num_micro_batches": 4} | BF16_FP32,
        runtime={"gradient_sync": LAST},
    ),
    Figure(
        theme="accumulation",
        name="kept after both, reduced on the last",
        reshard=False,
        keep_after_backward=True,
        **_micro_batches(gradient_sync=LAST),
    ),
    Figure(theme="accumulation", name="8 x 8, reduced every time", options=HYBRID | {"num_micro_batches": 4}),
    Figure(
        theme="accumulation",
        name="8 x 8, all-reduced on the last",
        options=HYBRID | {"num_micro_batches": 4},
        runtime={"gradient_sync": ALL_REDUCE_ON_LAST},
    ),
    Figure(theme="offload", name="on the device"),
    Figure(theme="offload", name="all units on the host", tier=StateTier.HOST),
    Figure(theme="offload", name="all units on the host, bf16", tier=StateTier.HOST, options=BF16_FP32),
    Figure(theme="offload", name="on the host, 4 micro-batches", tier=StateTier.HOST, **_micro_batches()),
    Figure(theme="checkpointing", name="2048 tokens", tokens=2048),
    Figure(theme="checkpointing", name="2048 tokens, every block checkpointed", tokens=2048, checkpoint=True),
    Figure(theme="dimensions", name="every block on dimension 0"),
    Figure(
        theme="dimensions",
        name="every block on dimension 1",
        options={"shard_dims": tuple(ShardDim(parameter=f"layers.{i}.map.weight", dim=1) for i in range(8))},
    ),
    Figure(theme="optimizer", name="AdamW foreach"),
    Figure(theme="optimizer", name="AdamW fused", optimizer=OptimizerGroup(implementation="fused")),
    Figure(theme="optimizer", name="AdamW in a loop", optimizer=OptimizerGroup(implementation="for_loop")),
    Figure(theme="optimizer", name="SGD with momentum", optimizer=OptimizerGroup(optimizer="sgd_momentum")),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was recorded, and whether the prediction says the same."""

    theme: str
    name: str
    between_steps_bytes: int = 0
    micro_batch_bytes: int = 0
    optimizer_bytes: int = 0
    host_bytes: int = 0
    all_gathers: int = 0
    reduce_scatters: int = 0
    all_reduces: int = 0
    program_equal: bool = False
    bytes_equal: bool = False
    error: str = ""


def recorded(figures: Sequence[Figure]) -> Iterator[tuple[Figure, Outline, MemoryRecord] | Row]:
    """Dry runs in one process; one by one where some of them fail."""
    try:
        records = run_isolated([figure.job(record) for figure in figures for record in ("program", "memory")])
    except DryRunError as error:
        if len(figures) == 1:
            yield Row(theme=figures[0].theme, name=figures[0].name, error=str(error).partition("\n")[0])
            return
        for figure in figures:
            yield from recorded([figure])
        return
    for index, figure in enumerate(figures):
        program, memory = records[2 * index : 2 * index + 2]
        assert isinstance(program, tuple)
        assert isinstance(memory, MemoryRecord)
        yield figure, program, memory


def row(figure: Figure, program: Outline, memory: MemoryRecord, model: ModelDescription) -> Row:
    """What was recorded, compared with what is predicted."""
    decisions = figure.decisions()
    workload = Workload(
        micro_batch=1,
        sequence=figure.tokens,
        global_batch=decisions.num_micro_batches * RANKS,
        optimizer_groups=(figure.optimizer,),
    )
    peaks = predicted_peaks(model, decisions, workload)
    close = compare_memory(
        memory,
        micro_batch_bytes=peaks.micro_batch.total_bytes,
        optimizer_bytes=peaks.optimizer.total_bytes,
        host_bytes=peaks.host_bytes,
    )
    return Row(
        theme=figure.theme,
        name=figure.name,
        between_steps_bytes=memory.persistent_bytes,
        micro_batch_bytes=memory.micro_batch.total_bytes,
        optimizer_bytes=memory.optimizer.total_bytes,
        host_bytes=memory.peak_host_bytes,
        **_counts(program),
        program_equal=compare(predicted_outline(model, decisions, sequence=figure.tokens), program).equal,
        bytes_equal=all(one.is_close for one in close),
    )


def _counts(program: Outline) -> dict[str, int]:
    kinds = {
        "all_gathers": OutlineKind.ALL_GATHER,
        "reduce_scatters": OutlineKind.REDUCE_SCATTER,
        "all_reduces": OutlineKind.ALL_REDUCE,
    }
    return {name: sum(one.kind is kind for one in program) for name, kind in kinds.items()}


def table(rows: Sequence[Row]) -> str:
    """Markdown; sizes in MiB."""
    lines = [
        "| configuration | between steps | forward and backward | optimizer step | host | AG | RS | AR |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in rows:
        if one.error:
            lines.append(f"| {one.name} | {one.error} |")
            continue
        sizes = (one.between_steps_bytes, one.micro_batch_bytes, one.optimizer_bytes, one.host_bytes)
        cells = [f"{size / MIB:.2f}" for size in sizes]
        counts = [str(number) for number in (one.all_gathers, one.reduce_scatters, one.all_reduces)]
        mark = "" if one.program_equal and one.bytes_equal else " (not as predicted)"
        lines.append(f"| {' | '.join([one.name + mark, *cells, *counts])} |")
    return "\n".join(lines)


def program_lines(program: Outline) -> Iterator[str]:
    """One line an operation: number, stream, what, and the operations of other streams that it waits for."""
    for index, one in enumerate(program):
        waits = ", ".join(str(wait) for wait in one.waits)
        phase = {"forward": "F", "backward": "B", "recompute": "R"}[one.phase.value]
        what = f"{one.kind.value} {one.unit or 'root'}" if one.kind is not OutlineKind.END else "end"
        yield f"{index:3} {one.stream.value:8} {phase} {what:32} {'after ' + waits if waits else ''}".rstrip()


def descriptions(figures: Sequence[Figure]) -> dict[tuple[Any, ...], ModelDescription]:
    """Descriptions of the ladders, made once each."""
    found: dict[tuple[Any, ...], ModelDescription] = {}
    for figure in figures:
        key = _key(figure)
        if key not in found:
            build = load_target(BUILD)
            found[key] = describe(
                lambda build=build, figure=figure: build(**figure.arguments),  # type: ignore[misc]
                name="ladder",
                micro_batch=1,
                sequence=figure.tokens,
                param_dtype=figure.decisions().param_dtype,
            )
    return found


def _key(figure: Figure) -> tuple[Any, ...]:
    return figure.num_blocks, figure.stored, figure.tokens, figure.decisions().param_dtype


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="themes whose name contains this text")
    parser.add_argument("--program", action="store_true", help="operations and edges of three blocks, nothing else")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    if arguments.program:
        (program,) = run_isolated([Figure(theme="", name="", num_blocks=3).job("program")])
        assert isinstance(program, tuple)
        print("\n".join(program_lines(program)))
        return 0
    figures = [figure for figure in FIGURES if arguments.only in figure.theme]
    models = descriptions(figures)
    rows = []
    for theme in dict.fromkeys(figure.theme for figure in figures):
        found = recorded([figure for figure in figures if figure.theme == theme])
        rows += [one if isinstance(one, Row) else row(*one, models[_key(one[0])]) for one in found]
        print(f"\n{theme}, units of {UNIT_BYTES // MIB} MiB, sizes in MiB\n")
        print(table([one for one in rows if one.theme == theme]), flush=True)
    if not arguments.only:
        document = provenance() | {"rows": [asdict(one) for one in rows]}
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    return int(not all(one.program_equal and one.bytes_equal for one in rows))


if __name__ == "__main__":
    sys.exit(main())
