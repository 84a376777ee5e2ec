"""One rank: train each case twice, planned and by hand, and print what happened as JSON lines."""

import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from runtime_client.apply import apply_plan
from runtime_client.fingerprint import fingerprint
from tests.real.by_hand import SHARD_BY_HAND, begin_by_hand
from tests.real.cases import planned
from tests.real.llama import Llama, seeded_llama
from tests.runtime_client.plans import body

NUM_STEPS = 5


class Collectives(TorchDispatchMode):
    """The collectives that a rank issues, in order, with the elements of their first tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.issued: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            tensor = args[0][0] if isinstance(args[0], list) else args[0]
            self.issued.append(f"{func._opname} {tensor.numel()} {tensor.dtype}")
        return func(*args, **(kwargs or {}))


def structure(model: nn.Module) -> list[object]:
    """What FSDP2 was told about each unit, wrappers included."""
    paths = {module: path for path, module in model.named_modules()}
    rows: list[object] = []
    for path, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        state = module._get_fsdp_state()
        group = state._fsdp_param_group
        gathered_by = group and group.post_forward_mesh_info and group.post_forward_mesh_info.mesh.shape
        rows.append(
            {
                "path": path,
                "class": type(module).__name__,
                "modules": [paths[m] for m in state._modules],
                "parameters": group and [list(p.sharded_param.shape) for p in group.fsdp_params],
                "placements": group and [str(p.sharded_param.placements) for p in group.fsdp_params],
                "offload": group and str(group.offload_policy),
                "reduces_unused": group and group.reduce_scatter_unused_params,
                "mesh": group and list(group.mesh_info.mesh.shape),
                "post_forward_mesh": gathered_by and list(gathered_by),
                "policy": str(state._mp_policy),
                "forward_prefetch": [paths[s._modules[0]] for s in state._states_to_forward_prefetch],
                "backward_prefetch": [paths[s._modules[0]] for s in state._states_to_backward_prefetch],
                "input_buffers": group and group.reduce_scatter_max_input_buffers,
                "separate_group": group and group.mesh_info.reduce_scatter_process_group is not None,
            }
        )
    return rows


def train(model: Llama, num_micro_batches: int, begin: Callable[[int], None]) -> dict[str, object]:
    """Five AdamW steps on data of this rank; losses and final shards bit by bit."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    batches = torch.randint(0, 61, (num_micro_batches, 2, 13), generator=data)
    losses = []
    with Collectives() as collectives:
        for _ in range(NUM_STEPS):
            for index, tokens in enumerate(batches):
                begin(index)
                logits = model(tokens[:, :-1]).float()
                loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / num_micro_batches
                loss.backward()
                losses.append(loss.item().hex())
            optimizer.step()
            optimizer.zero_grad()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor)
        digest.update(parameter.to_local().detach().contiguous().numpy().tobytes())
    return {
        "losses": losses,
        "shards": digest.hexdigest(),
        "collectives": collectives.issued,
        "structure": structure(model),
    }


def by_hand(case: str, num_ranks: int) -> dict[str, object]:
    model = seeded_llama()
    SHARD_BY_HAND[case](model, num_ranks)
    return train(model, planned(case, num_ranks).num_micro_batches, partial(begin_by_hand, case, model))


def by_plan(case: str, num_ranks: int) -> dict[str, object]:
    model = seeded_llama()
    plan = body(planned(case, num_ranks), fingerprint=fingerprint(model))
    applied = apply_plan(model, plan, device_type="cpu")
    return train(model, applied.decisions.num_micro_batches, applied.begin_micro_batch)


def main() -> None:
    dist.init_process_group("gloo")
    num_ranks = dist.get_world_size()
    for case in sys.argv[1:]:
        print(json.dumps({"case": case, "hand": by_hand(case, num_ranks), "plan": by_plan(case, num_ranks)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
