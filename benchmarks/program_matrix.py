"""Predicted programs and bytes against those of the real FSDP2 code in a dry run, over many configurations.

The configurations cover every pair of knob values (and each of some wishes of their own). Results are appended to
`docs/measurements/program/matrix.jsonl`, one line a configuration; those of the same commit are not run again.
Run from the repository: `python -m benchmarks.program_matrix`, or `make verify-program`.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import small_models
from benchmarks.program_configurations import OPTIMIZERS, PRECISIONS, Configuration
from benchmarks.program_cover import NUM_DRAWN, configurations
from benchmarks.record import done_before, provenance
from benchmarks.small_models import MODELS
from planner.program.outline import Outline, OutlineKind
from planner.program.predicted import predicted_outline
from planner.schema import (
    ClusterDescription,
    DType,
    ModelDescription,
    NodeGroup,
    PlanRequest,
    Precision,
    ShardwrightError,
    Workload,
)
from planner.simulate.peaks import predicted_peaks
from planner.simulate.predict import predict
from runtime_client.describe import describe
from runtime_client.dryrun import DryRunError, DryRunJob, MemoryRecord, run_isolated
from runtime_client.dryrun.compare import Comparison, MemoryComparison, compare, compare_memory

OUTPUT = Path(__file__).parents[1] / "docs" / "measurements" / "program" / "matrix.jsonl"
BATCH = 8
"""Configurations for each process that dry-runs: starting one costs seconds, an interruption loses one batch."""
NUM_SHOWN = 5
NUM_LETTERS = 300


@cache
def description(model: str, param_dtype: DType | None, output_dtype: DType | None = None) -> ModelDescription:
    """Description of a small model, made once for each element type."""
    parts = MODELS[model]
    return describe(
        parts.build,
        name=model,
        micro_batch=2,
        sequence=parts.sequence,
        param_dtype=param_dtype,
        output_dtype=output_dtype,
    )


def described(configuration: Configuration) -> ModelDescription:
    """The description that a configuration needs."""
    param_dtype, _, output_dtype = PRECISIONS[configuration.precision]
    return description(configuration.model, param_dtype, output_dtype)


def job(configuration: Configuration, record: str = "program") -> DryRunJob:
    """A dry run of a configuration."""
    return DryRunJob(
        record=record,
        build=f"{Path(small_models.__file__).resolve()}:{configuration.parts.build.__name__}",
        decisions=configuration.decisions(described(configuration)),
        sequence=configuration.parts.sequence,
        optimizer_groups=(OPTIMIZERS[configuration.optimizer],),
    )


def predicted(configuration: Configuration) -> Outline:
    """The outline that the planner predicts."""
    model = described(configuration)
    return predicted_outline(model, configuration.decisions(model), sequence=configuration.parts.sequence)


def request(configuration: Configuration) -> PlanRequest:
    """A request that the decisions answer."""
    model = described(configuration)
    decisions = configuration.decisions(model)
    num_ranks = decisions.mesh.num_ranks
    devices = min(8, num_ranks)
    return PlanRequest(
        model=model,
        cluster=ClusterDescription(
            name=f"{num_ranks} ranks",
            node_groups=(
                NodeGroup(
                    num_nodes=num_ranks // devices,
                    devices_per_node=devices,
                    device="H100-80G",
                    intra_node="nvlink4",
                    host_memory_bytes=2**40,
                    host_cores=64,
                ),
            ),
            inter_node="ib-ndr-400" if num_ranks > devices else None,
        ),
        workload=Workload(
            micro_batch=decisions.micro_batch,
            sequence=configuration.parts.sequence,
            global_batch=decisions.micro_batch * decisions.num_micro_batches * num_ranks,
            precision=Precision(
                param_dtype=decisions.param_dtype,
                reduce_dtype=decisions.reduce_dtype,
                output_dtype=decisions.output_dtype,
            ),
            optimizer_groups=(OPTIMIZERS[configuration.optimizer],),
        ),
    )


def compared_bytes(configuration: Configuration, record: MemoryRecord) -> tuple[MemoryComparison, ...]:
    """Allocated bytes of the phases of a step, and of the whole step in device and host memory."""
    asked = request(configuration)
    decisions = configuration.decisions(asked.model)
    peaks = predicted_peaks(asked.model, decisions, asked.workload)
    step = predict(asked, decisions)
    return (
        *compare_memory(
            record,
            micro_batch_bytes=peaks.micro_batch.total_bytes,
            optimizer_bytes=peaks.optimizer.total_bytes,
            host_bytes=step.host_bytes,
        ),
        MemoryComparison("step", step.peak.allocated_bytes, record.peak_bytes),
    )


def result(configuration: Configuration, recorded: Outline, record: MemoryRecord) -> dict[str, Any]:
    """One line of the results."""
    outline = predicted(configuration)
    found: Comparison = compare(outline, recorded)
    rows = compared_bytes(configuration, record)
    shown = [str(difference) for difference in found.differences[:NUM_SHOWN]]
    shown += [f"{row.phase}: {row.error:+.3%}" for row in rows if not row.is_close]
    return {
        "equal": found.equal and all(row.is_close for row in rows),
        "operations": sum(tally.num_operations[1] for tally in found.tallies),
        "edges": found.num_edges[1],
        "kernels": [_num_kernels(outline), _num_kernels(recorded)],
        "bytes": {
            row.phase: {
                "predicted": row.predicted_bytes,
                "recorded": row.recorded_bytes,
                "ratio": round(1 + row.error, 5),
            }
            for row in rows
        },
        "differences": {kind.name.lower(): n for kind, n in Counter(d.kind for d in found.differences).items()},
        "first": shown,
    }


def _num_kernels(outline: Outline) -> int:
    return sum(operation.num_kernels for operation in outline if operation.kind is OutlineKind.KERNELS)


def run_batch(batch: Sequence[Configuration]) -> Iterator[dict[str, Any]]:
    """Results of some configurations, dry-run in one process; one at a time when one of them fails."""
    try:
        records = run_isolated([job(one, record) for one in batch for record in ("program", "memory")])
    except (DryRunError, ShardwrightError) as error:
        if len(batch) == 1:
            yield {"equal": False, "error": str(error).partition("\n")[0][:NUM_LETTERS]}
            return
        for configuration in batch:
            yield from run_batch([configuration])
        return
    for configuration, program, memory in zip(batch, records[::2], records[1::2], strict=True):
        assert isinstance(program, tuple)
        assert isinstance(memory, MemoryRecord)
        try:
            yield result(configuration, program, memory)
        except ShardwrightError as error:
            yield {"equal": False, "error": f"not predicted: {error}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="configurations whose name contains this text")
    parser.add_argument("--drawn", type=int, default=NUM_DRAWN, help="configurations drawn beside the cover")
    parser.add_argument("--again", action="store_true", help="also those that this commit has results of")
    parser.add_argument("--minutes", type=float, default=None, help="stop after the batch that passes this time")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    started = time.monotonic()
    where = provenance()
    done = set() if arguments.again else done_before(arguments.output, "name")
    wanted = [one for one in configurations(arguments.drawn) if arguments.only in one.name and one.name not in done]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    counted: Counter[str] = Counter()
    for start in range(0, len(wanted), BATCH):
        batch = wanted[start : start + BATCH]
        with arguments.output.open("a") as output:
            for configuration, found in zip(batch, run_batch(batch), strict=True):
                counted["equal" if found["equal"] else "different"] += 1
                output.write(
                    json.dumps(where | {"name": configuration.name} | asdict(configuration) | found) + "\n"
                )
                print("equal    " if found["equal"] else "DIFFERENT", configuration.name, flush=True)
                for text in [found["error"]] if "error" in found else found["first"]:
                    print("   ", text, flush=True)
        if arguments.minutes is not None and time.monotonic() - started > 60 * arguments.minutes:
            break
    print(f"{counted['equal']} equal, {counted['different']} different, {len(done)} done before")
    return int(counted["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
