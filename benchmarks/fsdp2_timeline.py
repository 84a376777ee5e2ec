"""The timelines of docs/fsdp2.md: a micro-batch of three blocks, every kernel and collective of a round duration.

A digit is a unit, `r` the root; `>` is a copy-out, `<` the copy into the reduce-scatter input, `.` waiting. Then
the peak of each allocator pool for eight blocks. Run from the repository: `python -m benchmarks.fsdp2_timeline`.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.fsdp2_figures import BUILD, MIB, RANKS, Figure
from planner.program.build import build_program
from planner.program.events import OperationKind, Stream
from planner.program.inputs import knobs_of, meshes_of, partition_of, step_inputs
from planner.program.predicted import launches_only
from planner.schema import Decisions, MeshPlan, ModelDescription, Workload
from planner.simulate.replay import Replay, replay
from runtime_client.describe import describe, load_target

STREAMS = {Stream.COPY_IN: "copy_in", Stream.GATHER: "gather", Stream.COMPUTE: "compute", Stream.REDUCE: "reduce"}
MARKS = {OperationKind.COPY_OUT: ">", OperationKind.CHUNK_CAT: "<"}
COPY = 1


class RoundDurations:
    """Blocks of 4 and 8, embedding and head of 2 and 4, collectives as asked, copies of 1."""

    def __init__(self, launches: Any, gather: int, reduce: int) -> None:  # noqa: ANN401 - of a program's protocol
        self._launches, self._gather, self._reduce = launches, gather, reduce

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._launches, name)

    def forward_ns(self, kind: str) -> int:
        """4 for a block."""
        return 4 if self._is_block(kind) else 2

    def backward_ns(self, kind: str) -> int:
        """Twice the forward."""
        return 2 * self.forward_ns(kind)

    def collectives(self, mesh: MeshPlan) -> "RoundDurations":
        """The same over all."""
        return self

    def all_gather_ns(self, size_bytes: int, ranks: int | None = None) -> int:
        """As asked."""
        return self._gather

    def reduce_scatter_ns(self, size_bytes: int) -> int:
        """As asked."""
        return self._reduce

    def copy_ns(self, read_bytes: int, write_bytes: int) -> int:
        """One."""
        return COPY

    def _is_block(self, kind: str) -> bool:
        return self._launches.parts.model.kinds[kind].role == "block"


def played(model: ModelDescription, decisions: Decisions, *, gather: int, reduce: int, concurrent: bool) -> Replay:
    """A micro-batch with round durations."""
    parts = partition_of(model, decisions)
    inputs = step_inputs(
        parts,
        Workload(
            micro_batch=1,
            sequence=16,
            global_batch=decisions.mesh.num_ranks,
            precision=decisions.precision,
        ),
        meshes=meshes_of(decisions, parts),
        optimizer_bytes=0,
        optimizer_transient_bytes=0,
        decisions=decisions,
    )
    durations: Any = RoundDurations(launches_only(parts), gather, reduce)
    durations.concurrent_collectives = concurrent
    return replay(build_program(inputs, knobs_of(decisions, parts), durations))


def drawn(run: Replay) -> Iterator[str]:
    """One line for each stream."""
    begins = min(span.start_ns for span in run.spans if span.kind is OperationKind.BACKWARD)
    for stream, name in STREAMS.items():
        line = ["."] * run.micro_batch_ns
        for span in run.spans:
            if span.stream is stream:
                mark = MARKS.get(span.kind, "r" if "layers" not in span.owner else span.owner[-1])
                line[span.start_ns : span.end_ns] = mark * (span.end_ns - span.start_ns)
        yield f"{name:8} {''.join(line[:begins])}|{''.join(line[begins:])}"
    yield f"{'':8} {run.micro_batch_ns} in all; backward begins at the bar"


def described(num_blocks: int) -> ModelDescription:
    """A ladder."""
    build = load_target(BUILD)
    return describe(lambda: build(num_blocks=num_blocks), name="ladder", micro_batch=1, sequence=16)  # type: ignore[call-arg]


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    model = described(3)
    two = {"reduce_scatter_max_input_buffers": 2}
    for title, runtime, reduce, concurrent in (
        ("default, communication hidden", {}, 4, False),
        ("default, reduce-scatters exposed: each block waits for the one before it (K = 1)", {}, 12, False),
        ("two reduce-scatter inputs (K = 2)", two, 12, False),
        ("and a communicator of their own", two | {"separate_reduce_scatter_group": True}, 12, True),
    ):
        decisions = Figure(theme="", name="", num_blocks=3, runtime=runtime).decisions()
        run = played(model, decisions, gather=3, reduce=reduce, concurrent=concurrent)
        print(f"\n{title}\n")
        print("\n".join(drawn(run)))
    eight = Figure(theme="", name="", num_blocks=8)
    run = played(described(8), eight.decisions(), gather=3, reduce=4, concurrent=False)
    pools = ", ".join(f"{pool.value} {size / MIB:.2f}" for pool, size in run.pools_bytes.items() if size)
    print(f"\npools of {RANKS} ranks, MiB, without optimizer state: {pools}")
    print(f"sum of their peaks {run.reserved_bytes / MIB:.2f}, peak of the sum {run.peak.total_bytes / MIB:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
