"""Predicted programs against those that the real FSDP2 code issues in a dry run, over many configurations.

The configurations cover every pair of knob values (and each of some wishes of their own). Results are appended to
`docs/measurements/program/matrix.jsonl`, one line a configuration; those of the same commit are not run again.
Run from the repository: `python -m benchmarks.program_matrix`, or `make verify-program`.
"""

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import small_models
from benchmarks.record import provenance
from benchmarks.small_models import MODELS, SmallModel
from planner.program.outline import Outline, OutlineKind
from planner.program.predicted import predicted_outline
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Decisions,
    DType,
    MeshPlan,
    ModelDescription,
    RuntimeKnobs,
    ShardwrightError,
    UnitPlan,
)
from runtime_client.describe import describe
from runtime_client.dryrun import DryRunError, DryRunJob, run_isolated
from runtime_client.dryrun.compare import Comparison, compare

OUTPUT = Path(__file__).parents[1] / "docs" / "measurements" / "program" / "matrix.jsonl"
BATCH = 8
"""Configurations for each process that dry-runs: starting one costs seconds, an interruption loses one batch."""
NUM_DRAWN = 50
NUM_SHOWN = 5
NUM_LETTERS = 300

PRECISIONS: dict[str, tuple[DType | None, DType | None, DType | None]] = {
    "stored": (None, None, None),
    "bf16-fp32": (DType.BFLOAT16, DType.FLOAT32, None),
    "bf16": (DType.BFLOAT16, None, None),
    "bf16-fp32-out": (DType.BFLOAT16, DType.FLOAT32, DType.FLOAT32),
    "fp32-bf16": (None, DType.BFLOAT16, None),
}
"""Parameters, reduction, output."""
KNOBS: dict[str, tuple[Any, ...]] = {
    "model": tuple(MODELS),
    "mesh": ((1, 8), (1, 2), (1, 64), (1, 1024), (8, 8), (2, 4), (8, 1), (1, 1)),
    "precision": tuple(PRECISIONS),
    "reshard": ("default", "keep", "mixed"),
    "root_reshard": (None, True, False),
    "checkpoint": ("none", "all", "second"),
    "forward_prefetch": (0, 1, 2, 3),
    "backward_prefetch": (0, 1, 2, 3),
    "root_prefetch": (0, 2),
    "own_embedding": (False, True),
    "tail": ("root", "unit", "units"),
    "blocks_per_unit": (1, 2),
    "reduce_buffers": (1, 2, 3),
    "num_micro_batches": (1, 2),
}
"""Values of every knob, FSDP2's default first."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One choice for every knob."""

    model: str = "llama"
    mesh: tuple[int, int] = (1, 8)
    """Replicate and shard degree."""
    precision: str = "stored"
    reshard: str = "default"
    """Of blocks: default, keep, or mixed (every second kept)."""
    root_reshard: bool | None = None
    checkpoint: str = "none"
    """Blocks: none, all, second (every second one)."""
    forward_prefetch: int = 0
    backward_prefetch: int = 0
    root_prefetch: int = 0
    """Blocks that the root gathers ahead: the first ones in forward, the last ones in backward."""
    own_embedding: bool = False
    tail: str = "root"
    """Norm and head: in the root, one unit, or two units."""
    blocks_per_unit: int = 1
    reduce_buffers: int = 1
    num_micro_batches: int = 1

    @property
    def name(self) -> str:
        """Model, mesh and what differs from the default."""
        others = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if field.name not in ("model", "mesh") and getattr(self, field.name) != field.default
        ]
        return " ".join([self.model, "x".join(map(str, self.mesh)), *others])

    @property
    def parts(self) -> SmallModel:
        """The model."""
        return MODELS[self.model]

    def decisions(self) -> Decisions:
        """What is applied and predicted."""
        param_dtype, reduce_dtype, output_dtype = PRECISIONS[self.precision]
        paths = self.parts.blocks
        every = {"none": len(paths), "all": 1, "second": 2}[self.checkpoint]
        checkpointed = paths[::every] if self.checkpoint != "none" else ()
        return Decisions(
            mesh=MeshPlan(replicate=self.mesh[0], shard=self.mesh[1]),
            units=(*self._units(), self._root()),
            activations=tuple(ActivationPlan(module=path, policy=ActivationPolicy.FULL) for path in checkpointed),
            param_dtype=param_dtype,
            reduce_dtype=reduce_dtype,
            output_dtype=output_dtype,
            micro_batch=2,
            num_micro_batches=self.num_micro_batches,
            runtime=RuntimeKnobs(reduce_scatter_max_input_buffers=self.reduce_buffers),
        )

    def _groups(self) -> list[tuple[str, ...]]:
        size, paths = self.blocks_per_unit, self.parts.blocks
        return [paths[start : start + size] for start in range(0, len(paths), size)]

    def _root(self) -> UnitPlan:
        firsts = [group[0] for group in self._groups()]
        return UnitPlan(
            modules=("",),
            reshard_after_forward=self.root_reshard,
            forward_prefetch=tuple(firsts[: self.root_prefetch]),
            backward_prefetch=() if self.parts.returns_encoding else tuple(firsts[::-1][: self.root_prefetch]),
        )

    def _units(self) -> Iterator[UnitPlan]:
        groups = self._groups()
        firsts = [group[0] for group in groups]
        for index, group in enumerate(groups):
            kept = self.reshard == "keep" or (self.reshard == "mixed" and index % 2 == 1)
            yield UnitPlan(
                modules=group,
                reshard_after_forward=False if kept else None,
                forward_prefetch=tuple(firsts[index + 1 : index + 1 + self.forward_prefetch]),
                backward_prefetch=tuple(firsts[max(0, index - self.backward_prefetch) : index][::-1]),
            )
        if self.own_embedding and self.parts.embedding:
            yield UnitPlan(modules=(self.parts.embedding,))
        if self.tail != "root" and self.parts.tail:
            tails = [self.parts.tail] if self.tail == "unit" else [(path,) for path in self.parts.tail]
            yield from (UnitPlan(modules=modules) for modules in tails)

    def job(self, record: str = "program") -> DryRunJob:
        """The dry run."""
        return DryRunJob(
            record=record,
            build=f"{Path(small_models.__file__).resolve()}:{self.parts.build.__name__}",
            decisions=self.decisions(),
            sequence=self.parts.sequence,
        )

    def predicted(self) -> Outline:
        """The outline that the planner predicts."""
        decisions = self.decisions()
        return predicted_outline(
            description(self.model, decisions.param_dtype), decisions, sequence=self.parts.sequence
        )


@cache
def description(model: str, param_dtype: DType | None) -> ModelDescription:
    """Description of a small model, made once for each element type."""
    parts = MODELS[model]
    return describe(parts.build, name=model, micro_batch=2, sequence=parts.sequence, param_dtype=param_dtype)


def pairwise_cover(knobs: dict[str, tuple[Any, ...]]) -> list[Configuration]:
    """Few configurations in which every two values of different knobs meet; greedy and deterministic."""
    names = list(knobs)
    open_pairs = {
        ((first, i), (second, j))
        for first, second in itertools.combinations(names, 2)
        for i in range(len(knobs[first]))
        for j in range(len(knobs[second]))
    }
    found = []
    while open_pairs:
        chosen = dict(min(open_pairs))
        for name in names:
            if name not in chosen:
                chosen[name] = max(range(len(knobs[name])), key=lambda i: (_gain(chosen, name, i, open_pairs), -i))
        open_pairs -= set(itertools.combinations([(name, chosen[name]) for name in names], 2))
        found.append(Configuration(**{name: knobs[name][index] for name, index in chosen.items()}))
    return found


def _gain(chosen: dict[str, int], name: str, index: int, open_pairs: set[Any]) -> int:
    order = list(KNOBS)
    pairs = (
        tuple(sorted(((name, index), (other, value)), key=lambda pair: order.index(pair[0])))
        for other, value in chosen.items()
    )
    return sum(pair in open_pairs for pair in pairs)


def drawn(num: int, seed: int = 0) -> list[Configuration]:
    """Configurations with every knob drawn on its own."""
    random = Random(seed)
    return [Configuration(**{name: random.choice(values) for name, values in KNOBS.items()}) for _ in range(num)]


def configurations(num_drawn: int = NUM_DRAWN) -> list[Configuration]:
    """Every model as it is, every knob alone on Llama, the pairwise cover, then drawn ones."""
    single = [Configuration(model=model) for model in MODELS]
    single += [Configuration(**{name: value}) for name, values in KNOBS.items() for value in values]
    return list(dict.fromkeys(map(_runnable, [*single, *pairwise_cover(KNOBS), *drawn(num_drawn)])))


def _runnable(configuration: Configuration) -> Configuration:
    if configuration.parts.needs_bfloat16 and PRECISIONS[configuration.precision][0] is None:
        return replace(configuration, precision="bf16-fp32")
    return configuration


def result(configuration: Configuration, predicted: Outline, recorded: Outline) -> dict[str, Any]:
    """One line of the results."""
    found: Comparison = compare(predicted, recorded)
    return {
        "equal": found.equal,
        "operations": sum(tally.num_operations[1] for tally in found.tallies),
        "edges": found.num_edges[1],
        "kernels": [_num_kernels(predicted), _num_kernels(recorded)],
        "differences": {kind.name.lower(): n for kind, n in Counter(d.kind for d in found.differences).items()},
        "first": [str(difference) for difference in found.differences[:NUM_SHOWN]],
    }


def _num_kernels(outline: Outline) -> int:
    return sum(operation.num_kernels for operation in outline if operation.kind is OutlineKind.KERNELS)


def run_batch(batch: Sequence[Configuration]) -> Iterator[dict[str, Any]]:
    """Results of some configurations, dry-run in one process; one at a time when one of them fails."""
    try:
        records = run_isolated([configuration.job() for configuration in batch])
    except DryRunError as error:
        if len(batch) == 1:
            yield {"equal": False, "error": str(error).partition("\n")[0][:NUM_LETTERS]}
            return
        for configuration in batch:
            yield from run_batch([configuration])
        return
    for configuration, record in zip(batch, records, strict=True):
        assert isinstance(record, tuple)
        try:
            yield result(configuration, configuration.predicted(), record)
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
    done = set() if arguments.again else _done(arguments.output, str(where["commit"]))
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


def _done(output: Path, commit: str) -> set[str]:
    if not output.exists():
        return set()
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    return {line["name"] for line in lines if line["commit"] == commit}


if __name__ == "__main__":
    sys.exit(main())
