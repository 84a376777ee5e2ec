"""What applying a plan through the client costs, against `fully_shard` written by hand, in one run.

    python -m benchmarks.client_overhead [--blocks 32] [--rounds 7]

The program that FSDP2 runs is recorded both ways (64 ranks, fake tensors) and must be the same. Set-up and the
calls of a step are timed in turns in one process, over a group that moves nothing. The import of the client is
timed in processes of their own, which have torch installed and must not load it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.record import provenance
from planner.schema import Decisions, GradientSync, InputHashes, MeshPlan, PlanBody
from runtime_client.apply import AppliedPlan, apply_plan
from runtime_client.describe import TrainingExample, token_inputs
from runtime_client.dryrun import record_program, rehearsal
from runtime_client.fingerprint import fingerprint

OUTPUT = Path("docs/measurements/client-overhead.json")
RANKS = 64
NUM_MICRO_BATCHES = 4
SEQUENCE = 32
HEAVY = ("torch", "ortools", "fastapi", "sqlalchemy", "numpy")


def build_model(num_blocks: int) -> nn.Module:
    """A Llama of transformers, narrow and deep."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": num_blocks}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, use_cache=False))


def decisions_of(num_blocks: int) -> Decisions:
    """Every block a unit, prefetched by the one before, every second checkpointed."""
    blocks = [f"model.layers.{index}" for index in range(num_blocks)]
    units = [
        {"modules": [block], "forward_prefetch": blocks[index + 1 : index + 2]}
        for index, block in enumerate(blocks)
    ]
    return Decisions.model_validate(
        {
            "mesh": MeshPlan(shard=RANKS),
            "units": [*units, {"modules": [""]}],
            "activations": [{"module": block, "policy": "full"} for block in blocks[::2]],
            "param_dtype": "bfloat16",
            "reduce_dtype": "float32",
            "micro_batch": 1,
            "num_micro_batches": NUM_MICRO_BATCHES,
            "runtime": {"gradient_sync": GradientSync.LAST_MICRO_BATCH},
        }
    )


def by_hand(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The same as a person writes it."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    layers = model.model.layers  # type: ignore[union-attr]
    for index in range(0, len(layers), 2):
        layers[index] = checkpoint_wrapper(layers[index])
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for layer, following in pairwise(layers):
        layer.set_modules_to_forward_prefetch([following])
    return model


class ByHand(AppliedPlan):
    """Stands where the dry run expects an applied plan; the calls of a step are written by hand."""

    __slots__ = ()

    def begin_micro_batch(self, index: int) -> None:
        """Reduce on the last one."""
        self.model.set_requires_gradient_sync(index == NUM_MICRO_BATCHES - 1)  # type: ignore[operator]

    def after_optimizer_step(self) -> None:
        """Nothing to do."""


def same_program(num_blocks: int) -> int:
    """Number of operations of the recorded program, which is the same both ways."""

    def build() -> TrainingExample:
        return TrainingExample(model=build_model(num_blocks), inputs=token_inputs)

    def shard(model: nn.Module, decisions: Decisions, mesh: DeviceMesh) -> AppliedPlan:
        return ByHand(model=by_hand(model, mesh), mesh=mesh, decisions=decisions)

    decisions = decisions_of(num_blocks)
    planned = record_program(build, decisions, sequence=SEQUENCE)
    original, rehearsal.apply_decisions = rehearsal.apply_decisions, shard
    try:
        hand = record_program(build, decisions, sequence=SEQUENCE)
    finally:
        rehearsal.apply_decisions = original
    if planned != hand:
        raise SystemExit("the client runs another program than the one written by hand")
    return len(planned)


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def set_up(num_blocks: int, rounds: int) -> dict[str, float]:
    """Sharding a model on the meta device: `apply_plan` with all its checks, and by hand, in turns."""
    with torch.device("meta"):
        plan = plan_of(build_model(num_blocks), decisions_of(num_blocks))
    times: dict[str, list[float]] = {"client": [], "hand": []}
    for _ in range(rounds + 1):
        with torch.device("meta"):
            first, second = build_model(num_blocks), build_model(num_blocks)
        times["client"].append(seconds(lambda: apply_plan(first, plan, device_type="cpu")))  # noqa: B023
        mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("shard",))
        times["hand"].append(seconds(lambda: by_hand(second, mesh)))  # noqa: B023
    client, hand = (statistics.median(times[name][1:]) for name in ("client", "hand"))
    return {"client_ms": client * 1e3, "hand_ms": hand * 1e3, "ratio": client / hand}


def step_calls(num_blocks: int, rounds: int) -> dict[str, float]:
    """What a loop calls in a step of four micro-batches, by the client and by hand."""
    with torch.device("meta"):
        model = build_model(num_blocks)
    applied = apply_plan(model, plan_of(model, decisions_of(num_blocks)), device_type="cpu")
    hand = ByHand(model=applied.model, mesh=applied.mesh, decisions=applied.decisions)

    def step(of: AppliedPlan) -> None:
        for index in range(NUM_MICRO_BATCHES):
            of.begin_micro_batch(index)
        of.after_optimizer_step()

    times: dict[str, list[float]] = {"client": [], "hand": []}
    for _ in range(50 * rounds):
        times["client"].append(seconds(lambda: step(applied)))
        times["hand"].append(seconds(lambda: step(hand)))
    client, by_hand_s = (statistics.median(times[name]) for name in ("client", "hand"))
    return {"client_us": client * 1e6, "hand_us": by_hand_s * 1e6, "more_us": (client - by_hand_s) * 1e6}


def plan_of(model: nn.Module, decisions: Decisions) -> PlanBody:
    no_hash = "sha256:" + "0" * 64
    return PlanBody(
        name="overhead",
        outcome="feasible",
        model_fingerprint=fingerprint(model),
        world_size=RANKS,
        decisions=decisions,
        inputs=InputHashes(model=no_hash, cluster=no_hash, workload=no_hash, request=no_hash),
        planner_version="0",
    )


def import_cpu_s(rounds: int) -> float:
    """CPU seconds of importing the client, which must load nothing heavy."""
    code = (
        "import sys, time; start = time.process_time(); import runtime_client.client; "
        f"print(time.process_time() - start, *[name for name in {HEAVY} if name in sys.modules])"
    )
    found = []
    for _ in range(rounds):
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        spent, *loaded = run.stdout.split()
        if loaded:
            raise SystemExit(f"the client loads {', '.join(loaded)}")
        found.append(float(spent))
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="What applying a plan through the client costs.")
    parser.add_argument("--blocks", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    num_operations = same_program(arguments.blocks)
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    found = {
        "blocks": arguments.blocks,
        "operations": num_operations,
        "set_up": set_up(arguments.blocks, arguments.rounds),
        "step": step_calls(arguments.blocks, arguments.rounds),
        "import_cpu_s": import_cpu_s(arguments.rounds),
    }
    print(json.dumps(found, indent=2))
    arguments.output.write_text(json.dumps(provenance() | found, indent=2) + "\n")


if __name__ == "__main__":
    main()
