"""One rank of the client's matrix: train each case by its plan and without one, and print how the two differ.

Run by ranks as `client_ranks.py EXPECTED CASE...`; `EXPECTED` is a JSON file of the collectives that each case
should issue in each step.
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from runtime_client.apply import apply_plan
from runtime_client.fingerprint import fingerprint, iter_parameters
from tests.real.client_cases import CASES, MICRO_BATCH, SEQUENCE, Case, build
from tests.real.llama import Llama
from tests.runtime_client.plans import body

NUM_STEPS = 5
VOCABULARY = 61
_KINDS = {
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "allreduce_": ("all_reduce", 0),
}
"""By operation of c10d, what it is and which argument has its larger tensor."""

Weights = dict[str, Tensor]


class Collectives(TorchDispatchMode):
    """The collectives that a rank issues, in order, with the bytes of their larger side."""

    def __init__(self) -> None:
        super().__init__()
        self.issued: list[list[Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d" and func._opname in _KINDS:
            kind, place = _KINDS[func._opname]
            tensor = args[place][0] if isinstance(args[place], list) else args[place]
            self.issued.append([kind, tensor.numel() * tensor.element_size()])
        return func(*args, **(kwargs or {}))


def train(
    model: Llama,
    num_micro_batches: int,
    *,
    begin: Callable[[int], object] = lambda _index: None,
    after: Callable[[], object] = lambda: None,
    clip: Callable[[], object] = lambda: None,
) -> list[list[list[Any]]]:
    """Steps of SGD with momentum on data of this rank; the collectives of each, without those of clipping."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    steps = []
    for _ in range(NUM_STEPS):
        with Collectives() as collectives:
            for index in range(num_micro_batches):
                begin(index)
                tokens = torch.randint(0, VOCABULARY, (MICRO_BATCH, SEQUENCE + 1), generator=data)
                logits = model(tokens[:, :-1]).float()
                loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                (loss / num_micro_batches).backward()
        steps.append(collectives.issued)
        clip()
        optimizer.step()
        after()
        optimizer.zero_grad()
    return steps


def weights(model: nn.Module) -> Weights:
    """Whole parameters by their original names."""
    return {
        name: (one.full_tensor() if isinstance(one, DTensor) else one).detach().cpu().clone()
        for name, one in iter_parameters(model)
    }


@cache
def without_plan(num_micro_batches: int, param_dtype: str | None, max_norm: float | None) -> Weights:
    """FSDP2 by hand, as its tutorial has it: each layer a unit, and the root."""
    model, mesh = build(), init_device_mesh("cpu", (dist.get_world_size(),))
    narrow = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = narrow if param_dtype == "bfloat16" else MixedPrecisionPolicy()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)

    def clip() -> None:
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    train(model, num_micro_batches, clip=clip)
    return weights(model)


def compared(case: Case, expected: Sequence[Any]) -> dict[str, Any]:
    """A run by the plan against the one without."""
    made = case.decisions(dist.get_world_size())
    model = build()
    start = weights(model)
    applied = apply_plan(model, body(made, fingerprint=fingerprint(model)), device_type="cpu")
    clip = (lambda: None) if case.max_norm is None else (lambda: applied.clip_grad_norm(case.max_norm or 0.0))
    steps = train(
        model,
        made.num_micro_batches,
        begin=applied.begin_micro_batch,
        after=applied.after_optimizer_step,
        clip=clip,
    )
    mine = weights(model)
    other = without_plan(made.num_micro_batches, made.param_dtype, case.max_norm)
    return {
        "difference": max((mine[name] - other[name]).abs().max().item() for name in other),
        "moved": min((mine[name] - start[name]).abs().max().item() for name in start),
        "collectives": len(steps[-1]),
        "program_equal": steps[1:] == [list(expected)] * (NUM_STEPS - 1),
        "first_step_equal": sorted(steps[0]) == sorted(expected),
    }


def main() -> None:
    dist.init_process_group("gloo")
    expected = json.loads(Path(sys.argv[1]).read_text())
    for name in sys.argv[2:]:
        print(json.dumps({"case": name, **compared(CASES[name], expected[name])}), flush=True)


if __name__ == "__main__":
    main()
