"""Profile two models on one device, train them as several plans say, and compare with what was predicted.

    python scripts/gpu_check.py --output check.json     # one GPU, under eight minutes
    python scripts/gpu_check.py --device cpu            # small, for trying the script
    python scripts/gpu_check.py --write-model m.json    # describe the Llama for the planner, and stop
    python scripts/gpu_check.py --plan plan.json        # also measure that plan of it

Run it from a checkout of this repository; nothing has to be installed but torch and pydantic. The models are stacks
of Llama blocks (once with the loss in chunks) and of mixtures of experts, trained with `fully_shard` over a world
of one rank. Predictions rest on the profile that the script measures first; `shardwright profile import` takes it
from the JSON.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from planner.catalog import device as data_sheet
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    CallMeasurement,
    ClusterDescription,
    Decisions,
    DeviceSheet,
    DType,
    Layout,
    LayoutEntry,
    MeshPlan,
    ModelDescription,
    NodeGroup,
    Plan,
    PlanRequest,
    Profile,
    Reserve,
    StateTier,
    TracePoint,
    UnitPlan,
    Workload,
)
from planner.simulate import predict
from runtime_client.apply import apply_decisions
from runtime_client.describe import TrainingExample, describe, token_inputs
from runtime_client.profile import ProfileOptions, World, profile

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes of the models and of their batch."""

    num_blocks: int
    width: int
    num_heads: int
    hidden: int
    vocabulary: int
    num_experts: int
    micro_batch: int
    sequence: int


SIZES = {
    "cuda": Size(
        num_blocks=12,
        width=2048,
        num_heads=16,
        hidden=5632,
        vocabulary=32000,
        num_experts=8,
        micro_batch=4,
        sequence=2048,
    ),
    "cpu": Size(
        num_blocks=2,
        width=64,
        num_heads=2,
        hidden=128,
        vocabulary=512,
        num_experts=4,
        micro_batch=2,
        sequence=256,
    ),
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


class FeedForward(nn.Module):
    """Gated, as in Llama."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate = nn.Linear(size.width, size.hidden, bias=False)
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, sequence, width)` to the same."""
        result: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


class Experts(nn.Module):
    """Each token goes to the two experts that its router likes best; products over sorted tokens are grouped."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden = size.hidden // 4
        self.router = nn.Linear(size.width, size.num_experts, bias=False)
        self.up = nn.Parameter(torch.randn(size.num_experts, size.width, hidden) * size.width**-0.5)
        self.down = nn.Parameter(torch.randn(size.num_experts, hidden, size.width) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, sequence, width)` to the same."""
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(2, dim=-1)
        order = chosen.flatten().argsort()
        counts = (chosen.flatten()[:, None] == torch.arange(self.up.shape[0], device=x.device)).sum(0)
        ends = counts.cumsum(0).to(torch.int32)
        inside = functional.silu(torch._grouped_mm(tokens[order // 2], self.up, offs=ends))
        outside = torch._grouped_mm(inside, self.down, offs=ends) * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // 2, outside).view_as(x)


class Block(nn.Module):
    """Pre-norm attention and a feed-forward or experts."""

    def __init__(self, size: Size, make: Callable[[Size], nn.Module]) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width)
        self.attention = Attention(size)
        self.feed_forward_norm = nn.RMSNorm(size.width)
        self.feed_forward = make(size)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, sequence, width)` to the same."""
        x = x + self.attention(self.attention_norm(x))
        result: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class Head(nn.Linear):
    """Projection to the vocabulary and cross entropy in chunks, so that the logits are never there as a whole."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """`(batch, sequence, width)` and token ids to the mean loss; without these, to logits."""
        if labels is None:
            return super().forward(x)
        options = torch.nn.LinearCrossEntropyOptions()
        return functional.linear_cross_entropy(x.flatten(0, 1), self.weight, labels.flatten(), options=options)


class Decoder(nn.Module):
    """Token ids `(batch, sequence)` to logits, or to the loss."""

    def __init__(self, size: Size, make: Callable[[Size], nn.Module], *, in_chunks: bool) -> None:
        super().__init__()
        self.in_chunks = in_chunks
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList(Block(size, make) for _ in range(size.num_blocks))
        self.norm = nn.RMSNorm(size.width)
        self.head = Head(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `(batch, sequence, vocabulary)`, or the loss of predicting the tokens themselves."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.head(self.norm(x), *([tokens] if self.in_chunks else []))
        return result


def build(kind: str = "llama", **size: int) -> TrainingExample:
    """One of the models of a `Size`."""
    make = Experts if kind == "moe" else FeedForward
    in_chunks = kind == CHUNKED
    model = Decoder(Size(**size), make, in_chunks=in_chunks)
    if in_chunks:
        return TrainingExample(model=model, inputs=token_inputs, loss=lambda output, args, kwargs: output)
    return TrainingExample(model=model, inputs=token_inputs)


LLAMA, CHUNKED, MOE = "llama", "llama, loss in chunks", "moe"
EVERY_BLOCK, EVERY_SECOND = 1, 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and how it is trained."""

    model: str
    name: str
    decisions: Decisions


def cases(size: Size, models: dict[str, ModelDescription]) -> Iterator[Case]:
    """What is measured, as far as the models take it."""
    plain = decisions(size)
    llama = models[LLAMA]
    yield Case(model=LLAMA, name="default", decisions=plain)
    yield Case(model=LLAMA, name="all checkpointed", decisions=checkpointed(plain, EVERY_BLOCK))
    yield Case(model=LLAMA, name="every second checkpointed", decisions=checkpointed(plain, EVERY_SECOND))
    for option in llama.kinds[llama.calls[1].kind].selective[:1]:
        selective = checkpointed(plain, EVERY_BLOCK, ActivationPolicy.SELECTIVE, option.saved_ops)
        yield Case(model=LLAMA, name=f"kept {', '.join(option.saved_ops)}", decisions=selective)
    yield Case(model=LLAMA, name="units on the host", decisions=on_host(plain))
    offloaded = checkpointed(plain, EVERY_SECOND, ActivationPolicy.OFFLOAD)
    yield Case(model=LLAMA, name="every second offloaded", decisions=offloaded)
    yield Case(model=LLAMA, name="ragged", decisions=ragged(plain, llama))
    yield Case(model=CHUNKED, name="default", decisions=plain)
    yield Case(model=MOE, name="default", decisions=plain)
    yield Case(model=MOE, name="all checkpointed", decisions=checkpointed(plain, EVERY_BLOCK))


def decisions(size: Size) -> Decisions:
    """One unit a block, one rank, bf16 with fp32 reduction."""
    paths = [*(f"layers.{index}" for index in range(size.num_blocks)), ""]
    return Decisions(
        mesh=MeshPlan(shard=1),
        units=tuple(UnitPlan(modules=(path,)) for path in paths),
        param_dtype=DType.BFLOAT16,
        reduce_dtype=DType.FLOAT32,
        micro_batch=size.micro_batch,
        num_micro_batches=1,
    )


def checkpointed(
    plain: Decisions,
    every: int,
    policy: ActivationPolicy = ActivationPolicy.FULL,
    saved_ops: tuple[str, ...] = (),
) -> Decisions:
    """One of so many blocks under a policy."""
    blocks = [unit.modules[0] for unit in plain.units[:-1]]
    plans = (ActivationPlan(module=path, policy=policy, saved_ops=saved_ops) for path in blocks[::every])
    return plain.model_copy(update={"activations": tuple(plans)})


def on_host(plain: Decisions) -> Decisions:
    """Shards, gradients and optimizer state of all blocks in host memory."""
    tiers = {"parameter_tier": StateTier.HOST, "optimizer_tier": StateTier.HOST}
    units = (*(unit.model_copy(update=tiers) for unit in plain.units[:-1]), plain.units[-1])
    return plain.model_copy(update={"units": units})


def ragged(plain: Decisions, model: ModelDescription) -> Decisions:
    """Every block as one buffer, its parameters one after the other."""
    layouts, units = [], []
    for unit in plain.units[:-1]:
        path = unit.modules[0]
        entries, end = [], 0
        for name, parameter in model.iter_parameters():
            if name.startswith(f"{path}."):
                size = parameter.num_elements
                entries.append(LayoutEntry(parameter=name, offset_elements=end, num_elements=size))
                end += size
        layouts.append(Layout(name=path, dtype=DType.FLOAT32, shard_elements=end, entries=tuple(entries)))
        units.append(unit.model_copy(update={"layouts": (path,)}))
    return plain.model_copy(update={"units": (*units, plain.units[-1]), "layouts": tuple(layouts)})


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One configuration; bytes that the device does not count are None, and so is all of one that failed."""

    model: str
    name: str
    num_steps: int
    predicted_step_ms: float
    predicted_allocated_bytes: int
    predicted_reserved_bytes: int
    step_ms: float | None = None
    """Median of the measured steps, optimizer included."""
    loss: float | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    failure: str = ""


class Trainer:
    """A sharded model on a device, one optimizer step at a time."""

    def __init__(self, kind: str, size: Size, chosen: Decisions, device: torch.device) -> None:
        torch.manual_seed(0)
        with device:
            self.example = build(kind, **asdict(size))
            self.args, self.kwargs = self.example.inputs(chosen.micro_batch, size.sequence)
        mesh = init_device_mesh(device.type, (1,), mesh_dim_names=("shard",))
        self.applied = apply_decisions(self.example.model, chosen, mesh)
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


def measure(case: Case, size: Size, device: torch.device, expected: Measurement, num_steps: int) -> Measurement:
    """Train a fresh model for a few steps."""
    on_gpu = device.type == "cuda"
    trainer = Trainer(case.model, size, case.decisions, device)
    for _ in range(3):
        trainer.step()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    durations_ms = []
    for _ in range(num_steps):
        started = time.perf_counter()
        loss = trainer.step()
        durations_ms.append((time.perf_counter() - started) * 1e3)
    return replace(
        expected,
        step_ms=statistics.median(durations_ms),
        loss=loss,
        allocated_bytes=torch.cuda.max_memory_allocated() if on_gpu else None,
        reserved_bytes=torch.cuda.max_memory_reserved() if on_gpu else None,
    )


def measured(case: Case, size: Size, device: torch.device, expected: Measurement, num_steps: int) -> Measurement:
    """A configuration that fails leaves its reason, and the others go on."""
    try:
        return measure(case, size, device, expected, num_steps)
    except Exception as error:
        return replace(expected, failure=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300])
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def predicted(case: Case, request: PlanRequest, num_steps: int) -> Measurement:
    """What a plan with these decisions would predict."""
    found = predict(request, case.decisions)
    return Measurement(
        model=case.model,
        name=case.name,
        num_steps=num_steps,
        predicted_step_ms=found.step_time_ns / 1e6,
        predicted_allocated_bytes=found.peak.allocated_bytes,
        predicted_reserved_bytes=found.peak.segments_bytes or found.peak.reserved_bytes,
    )


def request_of(model: ModelDescription, found: Profile, size: Size, device: torch.device) -> PlanRequest:
    """The model on this one device; what was measured comes from the profile, the rest from a data sheet."""
    nodes = NodeGroup(
        num_nodes=1,
        devices_per_node=1,
        device=sheet_of(device),
        host_memory_bytes=2**36,
        host_cores=os.cpu_count() or 1,
        intra_node="loopback",
    )
    return PlanRequest(
        model=model,
        cluster=ClusterDescription(name="this device", node_groups=(nodes,), reserve=Reserve(fragmentation=0.0)),
        workload=Workload(micro_batch=size.micro_batch, sequence=size.sequence, global_batch=size.micro_batch),
        profile=found,
    )


def sheet_of(device: torch.device) -> DeviceSheet:
    """Rates of the catalog's nearest device, the memory of this one."""
    if device.type == "cpu":
        return data_sheet("cpu").model_copy(update={"memory_bytes": 2**36, "host_link_bytes_per_s": 10**10})
    name, memory_bytes = torch.cuda.get_device_name(), torch.cuda.get_device_properties(device).total_memory
    nearest = next((known for known in ("H200", "H100-80G", "A100-80G", "L40S") if known[:4] in name), "A100-80G")
    return data_sheet(nearest).model_copy(update={"name": name, "memory_bytes": memory_bytes})


def table(measurements: list[Measurement]) -> str:
    """Measured beside predicted, as markdown; reserved is what the caching allocator holds."""
    lines = [
        "| model | configuration | step ms | predicted | allocated MiB | predicted | reserved MiB | predicted |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in measurements:
        sizes = (
            row.allocated_bytes,
            row.predicted_allocated_bytes,
            row.reserved_bytes,
            row.predicted_reserved_bytes,
        )
        numbers = [row.step_ms, row.predicted_step_ms, *(size and size / MIB for size in sizes)]
        cells = ["-" if number is None else f"{number:.1f}" for number in numbers]
        lines.append(f"| {row.model} | {row.name} | {' | '.join(cells)} |")
    failed = (f"{row.model}, {row.name}: {row.failure}" for row in measurements if row.failure)
    return "\n".join([*lines, *failed])


def planned(path: Path) -> Case:
    """Decisions of a plan for one rank."""
    body = Plan.from_json(path.read_bytes(), source=str(path)).body
    if body.decisions is None or body.decisions.mesh.num_ranks != 1:
        sys.exit(f"{path} must be a feasible plan for one rank: plan the model of --write-model for one device")
    return Case(model=LLAMA, name="plan", decisions=body.decisions)


def described(kind: str, size: Size) -> ModelDescription:
    """One of the models."""
    return describe(
        partial(build, kind, **asdict(size)),
        name=f"gpu-check-{kind}",
        micro_batch=size.micro_batch,
        sequence=size.sequence,
        param_dtype=DType.BFLOAT16,
    )


def profiled(models: dict[str, ModelDescription], size: Size, device: torch.device, seconds: float) -> Profile:
    """Times of the calls of all models, copies and optimizer steps on this device; every block is measured once."""
    found = [_profiled(kind, model, size, device, seconds) for kind, model in models.items()]
    calls: dict[object, CallMeasurement] = {}
    for one in found:
        for call in one.calls:
            calls.setdefault((call.block, call.micro_batch, call.sequence), call)
    together = {"name": "gpu-check", "model_fingerprint": None, "calls": tuple(calls.values())}
    return found[0].model_copy(update=together)


def _profiled(kind: str, model: ModelDescription, size: Size, device: torch.device, seconds: float) -> Profile:
    point = TracePoint(micro_batch=size.micro_batch, sequence=size.sequence)
    options = ProfileOptions(micro_batch=size.micro_batch, sequence=size.sequence, points=(point,), seconds=seconds)
    found = profile(partial(build, kind, **asdict(size)), model, options, world=World.join(device.type))
    for skipped in found.skipped:
        print(f"not measured: {skipped.what}: {skipped.why}", file=sys.stderr)
    return found.profile


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(SIZES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=10, help="measured steps of each configuration")
    parser.add_argument("--seconds", type=float, default=45.0, help="for the profile of each model")
    parser.add_argument("--plan", type=Path, help="a plan of the Llama for one rank, as JSON")
    parser.add_argument("--output", type=Path, help="where to write measurements and the profile as JSON")
    parser.add_argument("--write-model", type=Path, help="write the Llama's description and stop")
    return parser.parse_args()


def main() -> int:
    """Profile the models, then measure every configuration and the plan, if there is one."""
    given = arguments()
    size, device = SIZES[given.device], torch.device(given.device)
    if given.write_model:
        given.write_model.write_text(described(LLAMA, size).to_json())
        return 0
    models = {kind: described(kind, size) for kind in (LLAMA, CHUNKED, MOE)}
    found = profiled(models, size, device, given.seconds)
    requests = {kind: request_of(model, found, size, device) for kind, model in models.items()}
    dist.init_process_group("nccl" if given.device == "cuda" else "gloo", store=HashStore(), rank=0, world_size=1)
    measurements = []
    for case in [*cases(size, models), *([planned(given.plan)] if given.plan else [])]:
        expected = predicted(case, requests[case.model], given.steps)
        measurements.append(measured(case, size, device, expected, given.steps))
    dist.destroy_process_group()
    print(table(measurements))
    if given.output:
        given.output.write_text(json.dumps(document(size, measurements, found), indent=1) + "\n")
    return int(any(row.failure for row in measurements))


def document(size: Size, measurements: list[Measurement], found: Profile) -> dict[str, Any]:
    """The measurements, and the profile with what they were made on (its `provenance`)."""
    return {
        "size": asdict(size),
        "measurements": [asdict(row) for row in measurements],
        "profiles": [json.loads(found.to_json())],
    }


if __name__ == "__main__":
    sys.exit(main())
