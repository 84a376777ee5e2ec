"""Measure planned steps on one device against their predictions; needs torch and this package's client only.

    python scripts/gpu_check.py                         # one GPU, under five minutes
    python scripts/gpu_check.py --device cpu            # small, for trying the script
    python scripts/gpu_check.py --write-model m.json    # describe the model for the planner, and stop
    python scripts/gpu_check.py --plan plan.json        # also measure that plan, against its predictions

The model is a stack of Llama blocks, trained with `fully_shard` over a world of one rank.
"""

import argparse
import datetime
import gc
import json
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Decisions,
    DType,
    MeshPlan,
    Plan,
    Predictions,
    UnitPlan,
)
from runtime_client.apply import apply_decisions
from runtime_client.describe import TrainingExample, describe, token_inputs
from runtime_client.dryrun import DryRunJob, MemoryRecord, run_isolated

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes of the model and of its batch."""

    num_blocks: int
    width: int
    num_heads: int
    hidden: int
    vocabulary: int
    micro_batch: int
    sequence: int


SIZES = {
    "cuda": Size(
        num_blocks=12, width=2048, num_heads=16, hidden=5632, vocabulary=32000, micro_batch=4, sequence=2048
    ),
    "cpu": Size(num_blocks=2, width=128, num_heads=4, hidden=256, vocabulary=512, micro_batch=4, sequence=256),
}


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.num_heads = size.num_heads
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, sequence, width)` to the same."""
        heads = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """Pre-norm attention and gated feed-forward."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width)
        self.attention = Attention(size)
        self.feed_forward_norm = nn.RMSNorm(size.width)
        self.gate = nn.Linear(size.width, size.hidden, bias=False)
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, sequence, width)` to the same."""
        x = x + self.attention(self.attention_norm(x))
        y = self.feed_forward_norm(x)
        result: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result


class Llama(nn.Module):
    """Token ids `(batch, sequence)` to logits."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList(Block(size) for _ in range(size.num_blocks))
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `(batch, sequence, vocabulary)`."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def build(**size: int) -> TrainingExample:
    """The model of a `Size`."""
    return TrainingExample(model=Llama(Size(**size)), inputs=token_inputs)


def default_decisions(size: Size, *, checkpointed: bool) -> Decisions:
    """One unit a block, one rank, bf16 with fp32 reduction."""
    blocks = [f"layers.{index}" for index in range(size.num_blocks)]
    return Decisions(
        mesh=MeshPlan(shard=1),
        units=tuple(UnitPlan(modules=(path,)) for path in [*blocks, ""]),
        activations=tuple(
            ActivationPlan(module=path, policy=ActivationPolicy.FULL) for path in blocks if checkpointed
        ),
        param_dtype=DType.BFLOAT16,
        reduce_dtype=DType.FLOAT32,
        micro_batch=size.micro_batch,
        num_micro_batches=1,
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration and what is expected of it."""

    name: str
    decisions: Decisions
    predictions: Predictions | None = None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One configuration; bytes that the device cannot tell are None."""

    name: str
    step_ms: float
    """Median of the measured steps, optimizer included."""
    num_steps: int
    loss: float
    allocated_bytes: int | None
    reserved_bytes: int | None
    dry_run_bytes: int
    """Peak of the same configuration over fake tensors."""
    predicted_step_ms: float | None
    predicted_allocated_bytes: int | None
    predicted_reserved_bytes: int | None


class Trainer:
    """A sharded model on a device, one optimizer step at a time."""

    def __init__(self, size: Size, decisions: Decisions, device: torch.device) -> None:
        torch.manual_seed(0)
        with device:
            self.example = build(**asdict(size))
            self.args, self.kwargs = self.example.inputs(decisions.micro_batch, size.sequence)
        mesh = init_device_mesh(device.type, (1,), mesh_dim_names=("shard",))
        self.applied = apply_decisions(self.example.model, decisions, mesh)
        self.optimizer = torch.optim.AdamW(self.applied.model.parameters(), lr=1e-4, foreach=True)

    def step(self) -> float:
        """Forward, backward and update; returns the last loss."""
        for index in range(self.applied.decisions.num_micro_batches):
            self.applied.begin_micro_batch(index)
            loss = self.example.loss(self.applied.model(*self.args, **self.kwargs), self.args, self.kwargs)
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach().item()


def measure(case: Case, size: Size, device: torch.device, *, num_steps: int, dry_run_bytes: int) -> Measurement:
    """Train a fresh model for a few steps."""
    trainer = Trainer(size, case.decisions, device)
    on_gpu = device.type == "cuda"
    for _ in range(3):
        trainer.step()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    durations_ms = []
    for _ in range(num_steps):
        started = time.perf_counter()
        loss = trainer.step()
        durations_ms.append((time.perf_counter() - started) * 1e3)
    expected = case.predictions
    return Measurement(
        name=case.name,
        step_ms=statistics.median(durations_ms),
        num_steps=num_steps,
        loss=loss,
        allocated_bytes=torch.cuda.max_memory_allocated() if on_gpu else None,
        reserved_bytes=torch.cuda.max_memory_reserved() if on_gpu else None,
        dry_run_bytes=dry_run_bytes,
        predicted_step_ms=expected.step_time_ns / 1e6 if expected else None,
        predicted_allocated_bytes=expected.peak.allocated_bytes if expected else None,
        predicted_reserved_bytes=expected.peak.reserved_bytes if expected else None,
    )


def dry_runs(size: Size, configurations: list[Decisions]) -> list[int]:
    """Peak bytes of each configuration without a device."""
    jobs = [
        DryRunJob(
            build=f"{Path(__file__).resolve()}:build",
            arguments=asdict(size),
            decisions=decisions,
            sequence=size.sequence,
        )
        for decisions in configurations
    ]
    records = run_isolated(jobs)
    return [record.peak_bytes for record in records if isinstance(record, MemoryRecord)]


def table(measurements: list[Measurement]) -> str:
    """Measured beside predicted, as markdown."""
    lines = [
        "| configuration | step ms | predicted | allocated MiB | dry run | predicted | reserved MiB | predicted |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in measurements:
        numbers = [row.step_ms, row.predicted_step_ms]
        numbers += [
            size and size / MIB
            for size in (
                row.allocated_bytes,
                row.dry_run_bytes,
                row.predicted_allocated_bytes,
                row.reserved_bytes,
                row.predicted_reserved_bytes,
            )
        ]
        cells = ["-" if number is None else f"{number:.1f}" for number in numbers]
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def planned(path: Path) -> Case:
    """Decisions and predictions of a plan for one rank."""
    body = Plan.from_json(path.read_bytes(), source=str(path)).body
    if body.decisions is None or body.decisions.mesh.num_ranks != 1:
        sys.exit(f"{path} must be a feasible plan for one rank: plan the model of --write-model for one device")
    return Case(name="plan", decisions=body.decisions, predictions=body.predictions)


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(SIZES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=10, help="measured steps of each configuration")
    parser.add_argument("--plan", type=Path, help="a plan for one rank, as JSON")
    parser.add_argument("--output", type=Path, help="where to write the measurements as JSON")
    parser.add_argument("--write-model", type=Path, help="write the model's description and stop")
    return parser.parse_args()


def main() -> int:
    """Measure the default, the checkpointed default and the plan, if there is one."""
    given = arguments()
    size = SIZES[given.device]
    if given.write_model:
        description = describe(
            partial(build, **asdict(size)),
            name="gpu-check-llama",
            micro_batch=size.micro_batch,
            sequence=size.sequence,
            param_dtype=DType.BFLOAT16,
        )
        given.write_model.write_text(description.to_json())
        return 0
    cases = [
        Case(name="default", decisions=default_decisions(size, checkpointed=False)),
        Case(name="checkpointed", decisions=default_decisions(size, checkpointed=True)),
    ]
    if given.plan:
        cases.append(planned(given.plan))
    expected_bytes = dry_runs(size, [case.decisions for case in cases])
    device = torch.device(given.device)
    backend = "nccl" if given.device == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    measurements = []
    for case, dry_run_bytes in zip(cases, expected_bytes, strict=True):
        measurements.append(measure(case, size, device, num_steps=given.steps, dry_run_bytes=dry_run_bytes))
        if given.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
    dist.destroy_process_group()
    print(table(measurements))
    if given.output:
        given.output.write_text(json.dumps(document(device, size, measurements), indent=1) + "\n")
    return 0


def document(device: torch.device, size: Size, measurements: list[Measurement]) -> dict[str, Any]:
    """The measurements with what they were made on."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else platform.machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "size": asdict(size),
        "measurements": [asdict(row) for row in measurements],
    }


if __name__ == "__main__":
    sys.exit(main())
