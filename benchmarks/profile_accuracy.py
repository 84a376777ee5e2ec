"""How far two profiles of one model differ, and interpolated durations from a later measurement, on this CPU.

    python -m benchmarks.profile_accuracy                    # about six minutes; run it on a quiet machine
    python -m benchmarks.profile_accuracy --seconds 20 --output docs/measurements/profile-accuracy.json

Blocks of three models, one thread, in CPU time of that thread (what other processes take does not count). The sizes
that a profile fits to and the sizes that it never saw alternate within one run, sample by sample; the second
profile alternates with the first, in rounds of some seconds, each with modules of its own. So what changes on the
machine meanwhile changes all of them alike. Medians are compared.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

import torch

from benchmarks.record import provenance
from planner.catalog import device
from planner.costs.compute import pass_costs
from planner.schema import (
    CallMeasurement,
    CallRole,
    ClusterDescription,
    DType,
    ModelDescription,
    NumberSource,
    PlanRequest,
    Profile,
    TracePoint,
    Workload,
)
from runtime_client.describe import TrainingExample, describe, from_hf_config
from runtime_client.profile.calls import CallSamples, Subject, measure_subject, subjects
from runtime_client.profile.fake_run import FakeModel
from runtime_client.profile.options import default_points

MICRO_BATCH = 2
SEQUENCE = 256
UNSEEN = ((2, 192), (1, 192), (4, 96), (3, 128), (1, 128), (2, 96))
"""Within what `default_points(MICRO_BATCH, SEQUENCE)` span, and none of them."""
BEYOND = ((3, 256), (4, 192), (2, 384))
"""Half as many tokens again as the largest of them."""
PASSES = ("forward", "backward", "recompute")
ROUNDS = 4
BAR = 0.1

_SIZES = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 2048}
_GPT2 = {"n_embd": 256, "n_layer": 2, "n_head": 4, "vocab_size": 2048, "n_positions": 512}
_MOE = {"moe_intermediate_size": 256, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 64}
MODELS: dict[str, tuple[dict[str, object], DType]] = {
    "llama": (
        {"model_type": "llama", **_SIZES, "intermediate_size": 688, "num_key_value_heads": 2},
        DType.FLOAT32,
    ),
    "gpt2": ({"model_type": "gpt2", "bos_token_id": 0, "eos_token_id": 0, **_GPT2}, DType.FLOAT32),
    "qwen3-moe": (
        {"model_type": "qwen3_moe", **_SIZES, "intermediate_size": 512, "num_key_value_heads": 2, **_MOE},
        DType.BFLOAT16,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pass of one kind at one size, in microseconds."""

    model: str
    kind: str
    role: str
    which: str
    num_calls: int
    """Of the kind, in a forward of the model."""
    micro_batch: int
    sequence: int
    first_us: float
    second_us: float | None = None
    """By the second profile, where both have the size."""
    interpolated_us: float | None = None
    """From the sizes of the first profile, where it does not have this one."""
    spread: float = 0.0
    """(p90 - p10) / median of the first profile's samples."""

    @property
    def repeated_off(self) -> float | None:
        """Second profile against the first."""
        return None if self.second_us is None else self.second_us / self.first_us - 1

    @property
    def interpolated_off(self) -> float | None:
        """Interpolation against the measurement."""
        return None if self.interpolated_us is None else self.interpolated_us / self.first_us - 1


def rows_of(name: str, build: Callable[[], TrainingExample], dtype: DType, seconds: float) -> list[Row]:
    """Every kind of a model that has parameters or is the loss, measured twice."""
    model = describe(build, name=name, micro_batch=MICRO_BATCH, sequence=SEQUENCE, param_dtype=dtype)
    fake = FakeModel(build, model)
    seen = list(default_points(MICRO_BATCH, SEQUENCE))
    unseen = [TracePoint(micro_batch=batch, sequence=sequence) for batch, sequence in UNSEEN + BEYOND]
    rows: list[Row] = []
    for subject in subjects(model):
        is_block = model.kinds[subject.kinds[0]].role is CallRole.BLOCK
        share = seconds if is_block else seconds / 3
        first: dict[TracePoint, CallSamples] = {}
        second: dict[TracePoint, CallSamples] = {}
        for _ in range(ROUNDS):
            _measure(fake, subject, seen + unseen, share / ROUNDS, into=first)
            _measure(fake, subject, seen, share / ROUNDS / 3, into=second)
        kind = subject.kinds[0]
        profile = Profile(calls=tuple(_call(kind, point, first[point]) for point in seen))
        for point in seen + unseen:
            rows += _rows(model, subject.kinds, point, first[point], second.get(point), profile)
    return rows


def _measure(
    fake: FakeModel,
    subject: Subject,
    points: list[TracePoint],
    seconds: float,
    *,
    into: dict[TracePoint, CallSamples],
) -> None:
    """A module and inputs of its own, so that two profiles share nothing."""
    found, skipped = measure_subject(
        fake, subject, points, torch.device("cpu"), seconds=seconds, now_ns=time.thread_time_ns
    )
    assert not skipped, skipped
    for point, samples in found.items():
        pooled = into.setdefault(point, CallSamples())
        for which in PASSES:
            getattr(pooled, which).extend(getattr(samples, which))


def _call(kind: str, point: TracePoint, samples: CallSamples) -> CallMeasurement:
    times = {f"{which}_ns": round(median(getattr(samples, which))) for which in PASSES if getattr(samples, which)}
    return CallMeasurement.model_validate({"kind": kind, **point.model_dump(), **times})


def _rows(
    model: ModelDescription,
    kinds: tuple[str, ...],
    point: TracePoint,
    first: CallSamples,
    second: CallSamples | None,
    profile: Profile,
) -> list[Row]:
    found = []
    kind = kinds[0]
    for which in PASSES:
        samples: list[int] = getattr(first, which)
        if not samples:
            continue
        cuts = quantiles(samples, n=10)
        found.append(
            Row(
                model=model.name,
                kind=kind,
                role=model.kinds[kind].role,
                num_calls=sum(call.kind in kinds for call in model.calls),
                which=which,
                micro_batch=point.micro_batch,
                sequence=point.sequence,
                first_us=median(samples) / 1e3,
                second_us=median(getattr(second, which)) / 1e3 if second else None,
                interpolated_us=None if second else interpolated_ns(model, kind, which, point, profile) / 1e3,
                spread=(cuts[-1] - cuts[0]) / median(samples),
            )
        )
    return found


def interpolated_ns(model: ModelDescription, kind: str, which: str, point: TracePoint, profile: Profile) -> int:
    """What a plan at this size takes for a pass."""
    cluster = ClusterDescription.from_json((Path("examples/clusters") / "gloo-2.json").read_text())
    workload = Workload(**point.model_dump(), global_batch=2 * point.micro_batch)
    request = PlanRequest(model=model, cluster=cluster, workload=workload, profile=profile)
    found = pass_costs(request, device("cpu"), overlapped=False)[kind, which]
    assert found.source is NumberSource.INTERPOLATED, found
    return found.duration_ns


def summary(rows: Sequence[Row], off: str) -> str:
    """Median and worst of the distances, of blocks, of the rest and of all calls together, as rows of a table."""
    lines = []
    for model in dict.fromkeys(row.model for row in rows):
        for which in PASSES:
            chosen = [r for r in rows if r.model == model and r.which == which and getattr(r, off) is not None]
            cells = _cells([getattr(r, off) for r in chosen if r.role == "block"])
            cells += _cells([getattr(r, off) for r in chosen if r.role != "block"])
            lines.append(f"| {model} | {which} | {' | '.join(cells)} | - | - |")
        cells = _cells(_together([row for row in rows if row.model == model], off))
        lines.append(f"| {model} | forward and backward | - | - | - | - | {' | '.join(cells)} |")
    columns = "blocks: median | worst | other calls: median | worst | all calls: median | worst"
    return "\n".join([f"| model | pass | {columns} |", f"|---|---|{'---:|' * 6}", *lines])


def misses(rows: Sequence[Row]) -> str:
    """How many interpolations are off by more than a tenth, and by more than their own samples spread."""
    compared = [row for row in rows if row.interpolated_off is not None]
    off = [row for row in compared if abs(row.interpolated_off or 0) > BAR]
    wider = [row for row in off if abs(row.interpolated_off or 0) > row.spread]
    slowest_us = max((row.first_us for row in off), default=0)
    return (
        f"{len(off)} of {len(compared)} off by more than {BAR:.0%}, the longest of them takes {slowest_us:.0f} us; "
        f"{len(wider)} by more than p90 - p10 of their samples"
    )


def _cells(distances: Sequence[float]) -> list[str]:
    sizes = list(map(abs, distances))
    return [f"{median(sizes):.1%}", f"{max(sizes):.1%}"] if sizes else ["-", "-"]


def _together(rows: Sequence[Row], off: str) -> list[float]:
    """Distances of the sums over all calls of a model, of each size."""
    measured: dict[tuple[int, int], float] = {}
    claimed: dict[tuple[int, int], float] = {}
    for row in rows:
        distance: float | None = getattr(row, off)
        if distance is not None and row.which != "recompute":
            size = (row.micro_batch, row.sequence)
            measured[size] = measured.get(size, 0) + row.num_calls * row.first_us
            claimed[size] = claimed.get(size, 0) + row.num_calls * row.first_us * (1 + distance)
    return [claimed[size] / measured[size] - 1 for size in measured]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each block; other calls get a third")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    rows: list[Row] = []
    for name in given.models:
        config, dtype = MODELS[name]
        rows += rows_of(name, from_hf_config(config), dtype, given.seconds)
        print(f"{name} done", flush=True)
    print(f"\nThe second profile against the first (load {load:.1f}):\n\n{summary(rows, 'repeated_off')}")
    beyond = [row for row in rows if (row.micro_batch, row.sequence) in BEYOND]
    within = [row for row in rows if row not in beyond]
    print(f"\nInterpolated against measured, sizes never seen:\n\n{summary(within, 'interpolated_off')}")
    print(misses(within))
    print(f"\nHalf as large again as all that were seen:\n\n{summary(beyond, 'interpolated_off')}")
    print(misses(beyond))
    print(f"\nSpread of samples (p90 - p10) / median: {median(row.spread for row in rows):.1%} in the middle")
    if given.output:
        lines = [asdict(row) for row in rows]
        found = {**provenance(), "load": [round(load, 1), round(os.getloadavg()[0], 1)], "rows": lines}
        given.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
