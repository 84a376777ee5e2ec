"""What a trainer holds after a plan was applied."""

import itertools
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from planner.schema import Decisions, GradientSync, Predictions
from runtime_client.apply.activation_offload import ActivationOffload
from runtime_client.apply.clipping import clip_grad_norm
from runtime_client.apply.modules import find_module
from runtime_client.apply.step_check import StepReport, checked_step
from runtime_client.errors import (
    BatchDiffersFromPlan,
    OptimizerBuiltTooEarly,
    OptimizerDiffersFromPlan,
    UnknownParameter,
)
from runtime_client.fingerprint import iter_parameters
from runtime_client.offload.optimizer import OffloadedOptimizer
from runtime_client.offload.state_files import StateFiles, store_of
from runtime_client.offload.units import offloaded_units
from runtime_client.ragged.local_pieces import LocalPiece, local_pieces

_MUON = "runtime_client.optimizers.Muon from named parameters with owners=applied.owners"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPlan:
    """A sharded model with the mesh and the decisions that shaped it."""

    model: nn.Module
    mesh: DeviceMesh
    decisions: Decisions
    predictions: Predictions | None = None
    """Of the plan; None for decisions that came without one."""
    activation_offload: ActivationOffload | None = None
    """Where the plan offloads activations, what does it."""
    offloaded_optimizers: list[OffloadedOptimizer] = field(default_factory=list, repr=False)
    """What `optimizer` has built for state off the device."""

    def optimizer(
        self,
        kind: type[Optimizer],
        params: Iterable[Any] | None = None,
        *,
        in_backward: bool = False,
        state_files: StateFiles | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Optimizer:
        """Build an optimizer that keeps its state where the plan says; `kind(params, **options)` where that is all.

        Options that the plan decided (`optimizer_options`) are added. Where state is off the device the result is
        an `OffloadedOptimizer`, with the methods, groups and state dicts of `kind`.

        Args:
            kind: class of the optimizer; with state off the device `torch.optim.Adam` or `AdamW`.
            params: as the kind takes them; all trainable parameters of the model by default.
            in_backward: let the CPU update a unit as soon as its gradients are complete, while backward goes on.
                Only for training that neither clips nor scales gradients, and steps after every backward.
            state_files: where and how state is kept that the plan has on NVMe.
            options: as of the kind.

        Raises:
            UnsupportedOptimizer: the kind or an option cannot have its state off the device.
            OptimizerDiffersFromPlan: as `check_optimizer`.
            StateDirectoryMissing: the plan keeps state on NVMe, and `state_files` is None; else as `NvmeStore`.
        """
        if issubclass(kind, torch.optim.Adam):
            options = {**self.optimizer_options, **options}
        chosen = [p for p in self.model.parameters() if p.requires_grad] if params is None else params
        units = offloaded_units(self.model, self.decisions)
        if not units:
            made: Optimizer = kind(chosen, **options)
        else:
            made = OffloadedOptimizer(
                cast(type[torch.optim.Adam], kind),
                chosen,
                units,
                make_store=store_of(self.decisions, state_files),
                device_type=self.mesh.device_type,
                in_backward=in_backward,
                is_last=self.decisions.num_micro_batches == 1,
                **options,
            )
            self.offloaded_optimizers.append(made)
            settle = made.settle
            self.model.register_forward_hook(lambda *_: settle())
        self.check_optimizer(made)
        return made

    @property
    def optimizer_options(self) -> dict[str, bool]:
        """Keyword arguments for torch's Adam and AdamW where the plan decided how they step, else none."""
        chosen = self.decisions.optimizer_implementation
        return {} if chosen is None else {"foreach": chosen == "foreach", "fused": chosen == "fused"}

    @property
    def owners(self) -> dict[str, int]:
        """Ranks that update Muon's matrices, for `runtime_client.optimizers.Muon`; empty where torch's will do."""
        return {entry.parameter: entry.rank for entry in self.decisions.owners}

    def begin_micro_batch(self, index: int) -> None:
        """Say which micro-batch of the optimizer step comes next, counted from 0.

        Matters when the plan reduces only on the last micro-batch, in part or whole, or keeps units gathered
        between micro-batches. Without these calls such a model reduces and reshards on every one: the same
        gradients up to rounding, at the cost of more communication.

        Raises:
            IndexError: the plan has fewer micro-batches.
        """
        count = self.decisions.num_micro_batches
        if not 0 <= index < count:
            raise IndexError(f"micro-batch {index} of a plan with {count} micro-batches per optimizer step")
        self.set_is_last_micro_batch(index == count - 1)

    def set_is_last_micro_batch(self, is_last: bool) -> None:
        """As `begin_micro_batch`, for trainers that only know whether the optimizer steps after it."""
        for optimizer in self.offloaded_optimizers:
            optimizer.begin_micro_batch(is_last=is_last)
        match self.decisions.runtime.gradient_sync:
            case GradientSync.LAST_MICRO_BATCH:
                self._root.set_requires_gradient_sync(is_last)
            case GradientSync.ALL_REDUCE_ON_LAST:
                self._root.set_requires_all_reduce(is_last)
            case GradientSync.EVERY_MICRO_BATCH:
                pass
        for unit in self.decisions.units:
            if not unit.reshard_after_backward:
                module = find_module(self.model, unit.modules[0], where="decisions.units")
                cast(FSDPModule, module).set_reshard_after_backward(is_last, recurse=False)

    def count_micro_batches(self) -> None:
        """Call `begin_micro_batch` by itself, before each forward in training mode with gradients, in turn.

        For trainers that have no hook before a micro-batch; every optimizer step must then have as many as planned.
        """
        numbers = itertools.cycle(range(self.decisions.num_micro_batches))

        def begin(model: nn.Module, _: object) -> None:
            if model.training and torch.is_grad_enabled():
                self.begin_micro_batch(next(numbers))

        self.model.register_forward_pre_hook(begin)

    def check_batches(self, *, micro_batch: int, num_micro_batches: int) -> None:
        """Refuse settings of a trainer that are not those of the plan; its predictions hold for its own alone.

        Args:
            micro_batch: Sequences of a forward on one rank.
            num_micro_batches: Forwards and backwards before the optimizer steps.

        Raises:
            BatchDiffersFromPlan: one of them is another than planned.
        """
        found, planned = (
            (micro_batch, num_micro_batches),
            (
                self.decisions.micro_batch,
                self.decisions.num_micro_batches,
            ),
        )
        if found != planned:
            raise BatchDiffersFromPlan(
                f"the trainer steps after {found[1]} micro-batches of {found[0]} sequences per rank, but the plan "
                f"was made for {planned[1]} of {planned[0]}: set the trainer to these, or plan again with "
                f"--micro-batch {found[0]} and the global batch that you train with"
            )

    def after_optimizer_step(self) -> None:
        """Say that the optimizer has stepped; call it right after, before anything else is launched.

        Where the plan has `post_optimizer_event` the gathers of the next step then wait for the optimizer alone,
        not for what was launched since. Without this call they wait for all of it.
        """
        if self.decisions.runtime.post_optimizer_event:
            event = torch.get_device_module(self.mesh.device_type).Event()
            event.record()
            self._root.set_post_optim_event(event)

    def checked_step(self) -> AbstractContextManager[StepReport]:
        """Watch the first optimizer step, and say in one line whether it did what the plan says.

        with applied.checked_step() as report:
            ...  # all micro-batches and the optimizer's step
        print(report.line, *report.warnings)
        """
        return checked_step(self.model, self.predictions, self.decisions)

    def clip_grad_norm(
        self, max_norm: float, *, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Clip the gradients of all parameters by their global norm, on whatever meshes the plan has put them.

        Call it after the last micro-batch, on every rank.

        Returns:
            The norm before clipping, a plain scalar.

        Raises:
            RuntimeError: the norm is not finite, where `error_if_nonfinite` asks for that.
            StepAlreadyBegun: the optimizer has used gradients in backward.
        """
        for optimizer in self.offloaded_optimizers:
            optimizer.check_not_begun()
        return clip_grad_norm(
            self.model.parameters(), max_norm, norm_type=norm_type, error_if_nonfinite=error_if_nonfinite
        )

    @property
    def _root(self) -> FSDPModule:
        return cast(FSDPModule, self.model)

    def local_pieces(self, name: str) -> tuple[LocalPiece, ...]:
        """Runs of elements of a parameter that this rank holds, by its original name.

        Raises:
            UnknownParameter: the model has no parameter of that name.
        """
        for found, parameter in iter_parameters(self.model):
            if found == name:
                return local_pieces(parameter)
        raise UnknownParameter(f"the model has no parameter {name!r}; names are those of the unsharded model")

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer that was built before sharding; it would silently train nothing.

        Raises:
            OptimizerBuiltTooEarly: it holds a parameter that the model no longer has.
            OptimizerDiffersFromPlan: it is an Adam, AdamW or Muon that steps in another way than the plan decided,
                or it has state on the device that the plan has elsewhere.
        """
        if isinstance(optimizer, torch.optim.Muon) and getattr(optimizer, "owners", {}) != self.owners:
            right = _MUON if self.owners else "it without owners"
            raise OptimizerDiffersFromPlan(f"Muon has other owners of its matrices than the plan: build {right}")
        names = {id(parameter): name for name, parameter in iter_parameters(self.model)}
        elsewhere = {id(p) for unit in offloaded_units(self.model, self.decisions).values() for p in unit}
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if id(parameter) not in names:
                    raise OptimizerBuiltTooEarly(
                        f"param_groups[{number}]['params'][{place}] (shape {tuple(parameter.shape)}) is not a "
                        "parameter of the sharded model: build the optimizer after apply_plan"
                    )
                if id(parameter) in elsewhere and not isinstance(optimizer, OffloadedOptimizer):
                    raise OptimizerDiffersFromPlan(
                        f"the plan keeps the optimizer state of {names[id(parameter)]!r} off the device, but this "
                        f"{type(optimizer).__name__} would not: build it with AppliedPlan.optimizer"
                    )
            if isinstance(optimizer, torch.optim.Adam):  # AdamW is one too
                self._check_implementation(group, number)

    def watch(self, optimizer: Optimizer) -> None:
        """Check an optimizer, and call `after_optimizer_step` by itself after each of its steps.

        For trainers that step on their own; call it once, right after the optimizer was built.

        Raises:
            OptimizerBuiltTooEarly, OptimizerDiffersFromPlan: as `check_optimizer`.
        """
        self.check_optimizer(optimizer)
        optimizer.register_step_post_hook(lambda *_: self.after_optimizer_step())

    def _check_implementation(self, group: dict[str, Any], number: int) -> None:
        """`foreach` may be left to torch, which takes it on accelerators."""
        chosen = self.decisions.optimizer_implementation
        fused, foreach = bool(group["fused"]), group["foreach"]
        found = "fused" if fused else "for_loop" if foreach is False else "foreach"
        if chosen is not None and found != chosen:
            raise OptimizerDiffersFromPlan(
                f"param_groups[{number}] steps {found!r}, but the plan decided {chosen!r}: build the optimizer "
                "with **applied.optimizer_options"
            )
