"""What torch's optimizers do on sharded parameters: run as a program, it prints JSON.

One rank of a fake process group, whose collectives allocate but do not communicate.
"""

import json
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.optimization import Adafactor

from runtime_client.optimizers import Muon

MATRICES = ((96, 48), (48, 96), (100, 30), (30, 100), (64, 64), (33, 17), (17, 33), (17, 200))
OWNED: tuple[list[tuple[tuple[int, int], int]], ...] = (
    [((96, 48), 0)],
    [((48, 96), 0)],
    [((64, 64), 0)],
    [((33, 17), 0)],
    [((17, 200), 0), ((33, 17), 1)],
    [((96, 48), 0), ((48, 96), 0), ((48, 40), 1), ((100, 30), 1), ((64, 64), 0)],
)
"""Matrices and the ranks that own them; the first rank has the largest of each round."""
VARIANTS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "torch foreach": lambda parameters: torch.optim.Adafactor(parameters, foreach=True),
    "torch for_loop": lambda parameters: torch.optim.Adafactor(parameters, foreach=False),
    "transformers": Adafactor,
    "transformers with a given rate": lambda parameters: Adafactor(parameters, lr=1e-3, relative_step=False),
}


class Recorder(TorchDispatchMode):
    """Bytes of new storages, FLOPs of matrix products, sizes of collectives."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.seen = {tensor.untyped_storage()._cdata for tensor in known}
        self.live = self.peak = self.flops = 0
        self.gathered: list[int] = []
        self.all_reduced: list[int] = []
        self.exchanged: list[int] = []
        """What this rank receives in each all-to-all."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        for tensor in tensors:
            self._count(tensor.untyped_storage())
        name = str(func)
        if "all_gather_into_tensor" in name:
            self.gathered.append(out.untyped_storage().nbytes())
        if "all_reduce" in name:
            self.all_reduced.append(out.untyped_storage().nbytes())
        if "alltoall" in name:
            self.exchanged.append(args[0].numel() * args[0].itemsize)
        if name.startswith(("aten.mm", "aten.addmm")):
            left, right = args[-2:]
            self.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen:
            return
        self.seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.live -= size


def sharded(shape: tuple[int, ...], mesh: DeviceMesh, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    """A parameter with a gradient."""
    whole = torch.ones(*shape, dtype=dtype)
    parameter = torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None))
    parameter.grad = torch.ones_like(parameter)
    return parameter


def muon(shape: tuple[int, int], mesh: DeviceMesh, dtype: torch.dtype) -> dict[str, Any]:
    """A warm step for one matrix."""
    parameter = sharded(shape, mesh, dtype)
    try:
        optimizer = torch.optim.Muon([parameter])
        optimizer.step()
        optimizer.step()
    except (RuntimeError, ValueError) as error:
        return {"shape": shape, "dtype": str(dtype).removeprefix("torch."), "error": str(error)}
    momentum = optimizer.state[parameter]["momentum_buffer"]
    known = [tensor.to_local() for tensor in (parameter.detach(), parameter.grad, momentum)]
    with Recorder(known) as recorder:
        optimizer.step()
    return {
        "shape": shape,
        "dtype": str(dtype).removeprefix("torch."),
        "elements": known[0].numel(),
        "state_bytes": known[2].untyped_storage().nbytes(),
        "peak_bytes": recorder.peak,
        "flops": recorder.flops,
        "gathered": recorder.gathered,
        "all_reduced": recorder.all_reduced,
    }


def owned_muon(owned: list[tuple[tuple[int, int], int]], mesh: DeviceMesh, dtype: torch.dtype) -> dict[str, Any]:
    """A warm step for matrices that ranks own; this rank is the first."""
    named = [(f"w{place}", sharded(shape, mesh, dtype)) for place, (shape, _) in enumerate(owned)]
    optimizer = Muon(named, owners={f"w{place}": owner for place, (_, owner) in enumerate(owned)})
    optimizer.step()
    optimizer.step()
    parameters = [parameter for _, parameter in named]
    momenta = [optimizer.state[parameter]["momentum_buffer"] for parameter in parameters]
    gradients = [parameter.grad for parameter in parameters]
    known = [tensor.detach().to_local() for tensor in (*parameters, *gradients, *momenta)]
    with Recorder(known) as recorder:
        optimizer.step()
    return {
        "owned": owned,
        "dtype": str(dtype).removeprefix("torch."),
        "elements": [tensor.numel() for tensor in known[: len(named)]],
        "peak_bytes": recorder.peak,
        "flops": recorder.flops,
        "exchanged": recorder.exchanged,
    }


def refusal(make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer], mesh: DeviceMesh) -> str:
    """What two steps of an optimizer over a matrix raise; empty when they run."""
    try:
        optimizer = make([sharded((16, 8), mesh)])
        optimizer.step()
        optimizer.step()
    except RuntimeError as error:
        return str(error)
    return ""


def main(num_ranks: int) -> None:
    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())
    mesh = init_device_mesh("cpu", (num_ranks,))
    shapes = (*MATRICES, (num_ranks, 24), (num_ranks - 1, 24), (24,))
    record = {
        "muon": [muon(shape, mesh, dtype) for shape in shapes for dtype in (torch.float32, torch.bfloat16)],
        "owned_muon": [
            owned_muon(owned, mesh, dtype) for owned in OWNED for dtype in (torch.float32, torch.bfloat16)
        ]
        if num_ranks > 1
        else [],
        "adafactor": {name: refusal(make, mesh) for name, make in VARIANTS.items()},
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main(int(sys.argv[1]))
