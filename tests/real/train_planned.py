"""One rank: get the plan as a training script does, train with it, train by hand, print both as one JSON line."""

import argparse
import json
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

from planner.schema import Decisions, Plan, PlanRequest
from planner.schema.decisions import GradientSync
from runtime_client.agreement import share_plan
from runtime_client.apply import apply_plan
from runtime_client.client import PlanClient
from tests.real.small_llama import MICRO_BATCH, NUM_MICRO_BATCHES, NUM_STEPS, SEQUENCE, VOCABULARY, build_model
from tests.real.train_both import Collectives, structure


def receive_plan(url: str, request_file: str, cache_dir: str) -> Plan:
    """Rank 0 asks the service; every rank verifies what it received."""

    def ask() -> Plan:
        with open(request_file, encoding="utf-8") as file:
            request = PlanRequest.from_json(file.read())
        answer = PlanClient(url, cache_dir=cache_dir, deadline_s=60).plan(request)
        assert (answer.source, answer.stale) == ("service", False)
        return answer.plan

    plan = share_plan(ask)
    assert plan.verify()
    return plan


def shard_by_hand(model: nn.Module, decisions: Decisions) -> None:
    """What the plan says, in plain calls of torch and without this project's client."""
    shape, names = (decisions.mesh.shard,), ("shard",)
    if decisions.mesh.replicate > 1:
        shape, names = (decisions.mesh.replicate, *shape), ("replicate", *names)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for activation in decisions.activations:
        parent, _, name = activation.module.rpartition(".")
        blocks = model.get_submodule(parent)
        blocks.register_module(name, checkpoint_wrapper(blocks.get_submodule(name)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    root_policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float32)
    *units, root = decisions.units
    for unit in units:
        modules = [model.get_submodule(path) for path in unit.modules]
        grouped = modules if len(modules) > 1 else modules[0]
        fully_shard(grouped, mesh=mesh, mp_policy=policy, reshard_after_forward=unit.reshard_after_forward)
    fully_shard(model, mesh=mesh, mp_policy=root_policy, reshard_after_forward=root.reshard_after_forward)
    for unit in decisions.units:
        module = model.get_submodule(unit.modules[0])
        if unit.forward_prefetch:
            module.set_modules_to_forward_prefetch([model.get_submodule(path) for path in unit.forward_prefetch])
        if unit.backward_prefetch:
            module.set_modules_to_backward_prefetch([model.get_submodule(path) for path in unit.backward_prefetch])
    if decisions.runtime.reduce_scatter_max_input_buffers > 1:
        model.set_reduce_scatter_max_input_buffers(decisions.runtime.reduce_scatter_max_input_buffers)  # type: ignore[operator]


def accumulate_by_hand(model: nn.Module, decisions: Decisions) -> Callable[[int], None]:
    """What a training loop calls before each micro-batch."""

    def begin(index: int) -> None:
        is_last = index == decisions.num_micro_batches - 1
        match decisions.runtime.gradient_sync:
            case GradientSync.LAST_MICRO_BATCH:
                model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
            case GradientSync.ALL_REDUCE_ON_LAST:
                model.set_requires_all_reduce(is_last)  # type: ignore[operator]
        for unit in decisions.units:
            if not unit.reshard_after_backward:
                model.get_submodule(unit.modules[0]).set_reshard_after_backward(is_last, recurse=False)  # type: ignore[operator]

    return begin


def train(model: nn.Module, begin: Callable[[int], None]) -> dict[str, object]:
    """Five AdamW steps on data of this rank: losses bit by bit, and what was communicated."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    batches = torch.randint(0, VOCABULARY, (NUM_MICRO_BATCHES, MICRO_BATCH, SEQUENCE), generator=data)
    losses = []
    with Collectives() as collectives:
        for _ in range(NUM_STEPS):
            for index, tokens in enumerate(batches):
                begin(index)
                logits = model(tokens).logits
                assert logits.dtype is torch.float32
                loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
                (loss / NUM_MICRO_BATCHES).backward()
                losses.append(loss.item().hex())
            optimizer.step()
            optimizer.zero_grad()
    return {"losses": losses, "collectives": collectives.issued, "structure": structure(model)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("request")
    parser.add_argument("cache_dir")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    plan = receive_plan(arguments.url, arguments.request, arguments.cache_dir)
    applied = apply_plan(build_model(), plan, device_type="cpu")
    planned = train(applied.model, applied.begin_micro_batch)
    model = build_model()
    shard_by_hand(model, applied.decisions)
    by_hand = train(model, accumulate_by_hand(model, applied.decisions))
    print(json.dumps({"plan_id": plan.envelope.plan_id, "plan": planned, "hand": by_hand}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
