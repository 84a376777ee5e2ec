"""One rank: train each case with all optimizer state on the device and with some elsewhere; what differs, as JSON.

The first argument is a directory for checkpoints and state files, the others are cases.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

from planner.schema import Decisions, UnitPlan
from runtime_client.apply import apply_decisions
from runtime_client.fingerprint import iter_parameters
from runtime_client.offload.errors import StepAlreadyBegun
from runtime_client.offload.state_files import StateFiles
from runtime_client.ragged.checkpoint import load_checkpoint, save_checkpoint
from tests.real.llama import Llama, seeded_llama
from tests.runtime_client.plans import checkpointed, decisions, unit
from tests.runtime_client.ragged.layouts import with_layouts

NUM_STEPS = 5
LAYERS = ("layers.0", "layers.1")
BFLOAT16 = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a case shards and trains; both arms do it alike but for the tiers."""

    tiers: dict[str, str]
    """`optimizer_tier` of units by first module."""
    parameter_tiers: dict[str, str] = field(default_factory=dict)
    in_backward: bool = False
    replicate: int = 1
    knobs: dict[str, Any] = field(default_factory=dict)
    micro_batches: int = 1
    clip: float | None = None
    is_ragged: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    kind: type[torch.optim.Adam] = torch.optim.AdamW

    def units(self, *, is_offloaded: bool) -> tuple[UnitPlan, ...]:
        """Bottom-up."""
        made = []
        for module in (*LAYERS, ""):
            parameters = self.parameter_tiers.get(module, "device")
            tier = self.tiers.get(module, "device") if is_offloaded else parameters
            made.append(unit(module, parameter_tier=parameters, optimizer_tier=tier))
        return tuple(made)

    def decisions(self, *, is_offloaded: bool) -> Decisions:
        """For all ranks of the job."""
        made = decisions(
            self.units(is_offloaded=is_offloaded),
            shard=dist.get_world_size() // self.replicate,
            replicate=self.replicate,
            num_micro_batches=self.micro_batches,
            **self.knobs,
        )
        return with_layouts(seeded_llama(num_blocks=2), made) if self.is_ragged else made


ALL = dict.fromkeys((*LAYERS, ""), "host")
SOME = {"layers.0": "host", "": "host"}
NO_SYNC = {"runtime": {"gradient_sync": "last_micro_batch"}}
CASES = {
    "all units": Case(tiers=ALL),
    "in backward": Case(tiers=ALL, in_backward=True),
    "some units, clipped": Case(tiers=SOME, clip=0.01, options={"foreach": True}),
    "fused, bfloat16": Case(tiers=SOME, knobs=BFLOAT16, options={"fused": True}, in_backward=True),
    "accumulation in backward": Case(tiers=SOME, micro_batches=2, in_backward=True),
    "no sync, amsgrad": Case(tiers=ALL, micro_batches=2, knobs=NO_SYNC, options={"amsgrad": True}),
    "Adam, checkpointed": Case(
        tiers=ALL, kind=torch.optim.Adam, in_backward=True, knobs={"activations": checkpointed(*LAYERS)}
    ),
    "ragged": Case(tiers=SOME, is_ragged=True, in_backward=True),
    "beside offloaded parameters": Case(
        tiers={"layers.0": "host", "layers.1": "host"}, parameter_tiers={"layers.0": "host"}
    ),
    "nvme": Case(tiers=dict.fromkeys(SOME, "nvme"), clip=0.01),
    "nvme in backward": Case(
        tiers=dict.fromkeys(ALL, "nvme"),
        in_backward=True,
        micro_batches=2,
        is_ragged=True,
        options={"amsgrad": True},
    ),
    "hybrid": Case(tiers=ALL, replicate=2, micro_batches=2, knobs=BFLOAT16, in_backward=True),
}


@dataclass(kw_only=True)
class Arm:
    """A model in training."""

    case: Case
    is_offloaded: bool
    files: Path

    def __post_init__(self) -> None:
        self.model = seeded_llama(num_blocks=2)
        made = self.case.decisions(is_offloaded=self.is_offloaded)
        names = ("replicate", "shard") if self.case.replicate > 1 else ("shard",)
        sizes = (made.mesh.replicate, made.mesh.shard) if self.case.replicate > 1 else (made.mesh.shard,)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        self.applied = apply_decisions(self.model, made, mesh)
        self.optimizer = self._optimizer()
        self.scheduler = StepLR(self.optimizer, 2, gamma=0.5)
        self.generator = torch.Generator().manual_seed(7 + dist.get_rank())

    def _optimizer(self) -> Optimizer:
        named = list(iter_parameters(self.model))
        groups = [
            {"params": [p for name, p in named if ("norm" in name) is is_norm], "weight_decay": decay}
            for is_norm, decay in ((True, 0.0), (False, 0.1))
        ]
        extra: dict[str, Any] = {}
        if self.is_offloaded:
            extra = {"in_backward": self.case.in_backward, "state_files": StateFiles(self.files / "state")}
        return self.applied.optimizer(self.case.kind, groups, lr=1e-2, **extra, **self.case.options)

    def train(self, num_steps: int) -> None:
        """Some steps."""
        for _ in range(num_steps):
            for index in range(self.case.micro_batches):
                self.applied.begin_micro_batch(index)
                backward(self.model, self.generator)
            if self.case.clip:
                self.applied.clip_grad_norm(self.case.clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()

    def found(self) -> dict[str, Tensor]:
        """Shards and state of this rank by name."""
        names = [name for name, _ in sorted(iter_parameters(self.model), key=lambda item: "norm" not in item[0])]
        shards = {name: local(parameter).clone() for name, parameter in iter_parameters(self.model)}
        state = self.optimizer.state_dict()["state"]
        moments = {f"{names[i]} {key}": local(x).clone() for i, own in state.items() for key, x in own.items()}
        return shards | moments


def backward(model: Llama, generator: torch.Generator) -> None:
    tokens = torch.randint(0, 61, (2, 9), generator=generator)
    functional.cross_entropy(model(tokens).float().view(-1, 61), tokens.view(-1)).backward()


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    same = {name for name in one.keys() & other.keys() if torch.equal(one[name], other[name])}
    return sorted((one.keys() | other.keys()) - same)


def compare(case: Case, files: Path) -> dict[str, object]:
    """Both arms; then the offloaded one saved, and loaded into a new one of each kind that goes on."""
    plain, offloaded = (Arm(case=case, is_offloaded=x, files=files) for x in (False, True))
    for arm in (plain, offloaded):
        arm.train(NUM_STEPS)
    result: dict[str, object] = {
        "entries": len(plain.found()),
        "offloaded": len(offloaded.applied.offloaded_optimizers),
        "trained": differences(plain.found(), offloaded.found()),
    }
    save_checkpoint(files / "checkpoint", offloaded.model, [offloaded.optimizer])
    for arm in (plain, offloaded):
        arm.train(1)
    for name, is_offloaded in (("loaded on device", False), ("loaded elsewhere", True)):
        again = Arm(case=case, is_offloaded=is_offloaded, files=files / name)
        load_checkpoint(files / "checkpoint", again.model, [again.optimizer])
        again.generator.set_state(offloaded_generator(NUM_STEPS * case.micro_batches))
        again.train(1)
        result[name] = differences(plain.found(), again.found())
    return result


def offloaded_generator(num_batches: int) -> Tensor:
    generator = torch.Generator().manual_seed(7 + dist.get_rank())
    for _ in range(num_batches):
        torch.randint(0, 61, (2, 9), generator=generator)
    return generator.get_state()


def refusals() -> dict[str, str]:
    """What a trainer is told that asks for what does not go with updates in backward."""
    case = Case(tiers=ALL, in_backward=True)
    found = {}

    def attempt(name: str, act: Any) -> None:
        arm = Arm(case=case, is_offloaded=True, files=Path())
        arm.applied.begin_micro_batch(0)
        backward(arm.model, arm.generator)
        try:
            act(arm)
        except StepAlreadyBegun as error:
            found[name] = str(error)

    def clip(arm: Arm) -> None:
        arm.applied.clip_grad_norm(0.01)

    def clip_by_torch(arm: Arm) -> None:
        torch.nn.utils.clip_grad_norm_(arm.model.parameters(), 0.01)
        arm.optimizer.step()

    def backward_again(arm: Arm) -> None:
        backward(arm.model, arm.generator)

    for name, act in (("clip", clip), ("torch's clip", clip_by_torch), ("backward again", backward_again)):
        attempt(name, act)
    return found


def main() -> None:
    dist.init_process_group("gloo")
    root = Path(sys.argv[1])
    for name in sys.argv[2:]:
        files = root / name.replace(" ", "-")
        result: Any = refusals() if name == "refusals" else compare(CASES[name], files)
        print(json.dumps({"case": name, **result}), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
