"""Adam and AdamW with the state of chosen units in host memory or on NVMe, and their step on the CPU."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from runtime_client.offload.errors import (
    OptimizerClosed,
    OptimizerStepFailed,
    StepAlreadyBegun,
    UnsupportedOptimizer,
)
from runtime_client.offload.pipeline import Job, Pipeline
from runtime_client.offload.staging import Staging
from runtime_client.offload.state_dicts import shown_state, state_of
from runtime_client.offload.store import HostStore, StateStore
from runtime_client.offload.unit_step import IDENTITIES, STEP, Member, UnitStep, hyperparameters

NUM_STAGING_BUFFERS = 3
"""One that is filled, one whose unit is updated, one that is copied back."""

_SAMPLED_ELEMENTS = 16

MakeStore = Callable[[Sequence[UnitStep]], StateStore]


class OffloadedOptimizer(Optimizer):
    """`torch.optim.Adam` or `AdamW` that keeps the state of some parameters off the device.

    Their shards and gradients are copied to the host, updated there by the same optimizer, and the new shards
    copied back, unit by unit in a pipeline (`runtime_client.offload.pipeline`). All others step as ever, at the
    same time. Results are those of the optimizer on the device, as far as the arithmetic of the two processors is
    the same. State dicts have torch's format; tensors of offloaded state are on the host.

    Args:
        kind: `torch.optim.Adam` or `torch.optim.AdamW`.
        params: as the kind takes them.
        units: parameters of each unit whose state is off the device, by its name.
        make_store: where the state is; host memory by default.
        device_type: of the parameters.
        in_backward: begin the step of a unit as soon as its gradients are reduced in the last micro-batch, while
            backward goes on. Gradients can then not be clipped, scaled or looked at before the step, and every
            backward of a last micro-batch is followed by a step.
        is_last: whether the micro-batches are all last ones until `begin_micro_batch` says otherwise.
        options: as of the kind.

    Raises:
        UnsupportedOptimizer: another kind, or an option that needs the state on the device.
    """

    def __init__(
        self,
        kind: type[Adam],
        params: Iterable[Any],
        units: Mapping[str, Sequence[nn.Parameter]],
        *,
        make_store: MakeStore = HostStore,
        device_type: str,
        in_backward: bool = False,
        is_last: bool = True,
        **options: Any,  # noqa: ANN401
    ) -> None:
        _check_kind(kind, options)
        device = kind(params, **options)
        super().__init__([dict(group) for group in device.param_groups], dict(device.defaults))
        self._kind, self._in_backward, self._is_last = kind, in_backward, is_last
        self._units = self._make_units(units)
        self._unit_of = {
            member.parameter: place for place, unit in enumerate(self._units) for member in unit.members
        }
        self._on_device = self._without_offloaded(device)
        self._store = make_store(self._units)
        self._num_steps = self._store.num_steps
        staging_bytes = max((unit.staging_bytes for unit in self._units), default=0)
        staging = Staging(NUM_STAGING_BUFFERS, staging_bytes, pin=device_type != "cpu")
        self._pipeline = Pipeline(self._store, staging, device_type)
        self._device = torch.get_device_module(device_type)
        self._failed: BaseException | None = None
        self._completed: Future[None] | None = None
        self._is_running = False
        self._begun: dict[int, Tensor] = {}
        """Units whose step began, each with some elements of its gradients as they were then."""
        self._waiting: dict[int, Any] = {}
        """Units of which some gradients are reduced, each with the event of the latest."""
        self._seen: dict[int, set[nn.Parameter]] = {}
        for place in range(len(self._units)):
            self._note_state(place)
        self._is_closed = False
        self._hooks: list[Any] = []
        if in_backward:
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
                for parameter in self._unit_of
            ]

    # The step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401
        """Update all parameters that have a gradient, as torch's; returns when the new shards are on the device.

        Raises:
            OptimizerStepFailed: an earlier step failed.
            StepAlreadyBegun: gradients were changed after their update had begun in backward.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_not_failed()
        self._check_unchanged()
        try:
            self._submit_rest()
            self._step_on_device()
            self._pipeline.finish()
            self._num_steps += 1
            if self._is_running:
                self._completed = self._pipeline.after_stores(partial(self._store.end_step, self._num_steps))
            for place in self._begun:
                self._note_state(place)
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._is_running = False
            self._begun, self._waiting, self._seen = {}, {}, {}
        return loss

    def settle(self) -> None:
        """Wait until the state of the last step is where it belongs.

        Where it is written to a disk, every rank must call this between a step and its next reduction: then no rank
        begins to overwrite the last step but one before all have completed the last.

        Raises:
            ShardwrightError: it could not be written.
        """
        if self._completed is None:
            return
        wait([self._completed])  # an interrupt here leaves it to be waited for again
        completed, self._completed = self._completed, None
        try:
            completed.result()
        except BaseException as error:
            self._failed = error
            raise

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Say whether the gradients that come next are complete after this micro-batch."""
        self._is_last = is_last

    def check_not_begun(self) -> None:
        """Refuse to have gradients changed that are used already.

        Raises:
            StepAlreadyBegun: a unit was updated in backward.
        """
        if self._begun:
            raise StepAlreadyBegun(
                f"{self._units[next(iter(self._begun))].name!r} was updated in backward, so its gradients cannot "
                "be clipped any more: build the optimizer with in_backward=False"
            )

    def close(self) -> None:
        """Finish what is on its way and end the threads; the optimizer is of no more use.

        Raises:
            ShardwrightError: the state of the last step could not be written.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for hook in self._hooks:
            hook.remove()
        try:
            self.settle()
        finally:
            self._pipeline.close()
            self._store.close()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, before the first step only."""
        if hasattr(self, "_pipeline"):
            raise UnsupportedOptimizer("parameters cannot be added later: name all when the optimizer is built")
        super().add_param_group(param_group)

    def _submit_rest(self) -> None:
        groups = hyperparameters(self.param_groups)
        for place, unit in enumerate(self._units):
            if place not in self._begun:
                self._submit(place, unit.with_gradient(), groups)

    def _submit(self, place: int, members: Sequence[Member], groups: Any, ready: Any = None) -> None:  # noqa: ANN401
        if not members:
            return
        if not self._is_running:
            self._check_not_failed()
            self.settle()
            self._store.begin_step()
            self._is_running = True
        if ready is None:
            ready = self._device.current_stream().record_event()
        unit = self._units[place]
        gradients = [member.gradient for member in members]
        self._begun[place] = _sample(gradients)
        self._pipeline.submit(
            Job(index=place, unit=unit, members=members, gradients=gradients, groups=groups, ready=ready)
        )

    def _step_on_device(self) -> None:
        for own, place in self._on_device_groups:
            own.update({name: value for name, value in self.param_groups[place].items() if name not in IDENTITIES})
        self._on_device.step()

    # In backward

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        """FSDP2 has reduced the gradient of a parameter, on the stream that is current now."""
        if not self._is_last:
            return
        place = self._unit_of[parameter]
        if place in self._begun:
            raise StepAlreadyBegun(
                f"unit {self._units[place].name!r} got gradients again after its update in backward: call "
                "AppliedPlan.begin_micro_batch before each micro-batch, and the optimizer's step after the last"
            )
        for other in [found for found in self._waiting if found != place]:
            self._begin(other)
        self._waiting[place] = self._device.current_stream().record_event()
        self._seen.setdefault(place, set()).add(parameter)
        if len(self._seen[place]) == len(self._units[place].members):
            self._begin(place)

    def _begin(self, place: int) -> None:
        """Update a unit; parameters of it that got no gradient in this backward may have one of before."""
        self._submit(
            place, self._units[place].with_gradient(), hyperparameters(self.param_groups), self._waiting.pop(place)
        )

    def _check_unchanged(self) -> None:
        for place, sample in self._begun.items():
            found = _sample([member.gradient for member in self._units[place].with_gradient()])
            if not torch.equal(found.nan_to_num(), sample.nan_to_num()):
                raise StepAlreadyBegun(
                    f"gradients of {self._units[place].name!r} were changed or dropped after its update in "
                    "backward: build the optimizer with in_backward=False"
                )

    def _check_not_failed(self) -> None:
        if self._is_closed:
            raise OptimizerClosed("the optimizer was closed: build another one with AppliedPlan.optimizer")
        if self._failed is not None:
            raise OptimizerStepFailed(
                "an earlier step of the optimizer failed half-way; go on from a checkpoint in a new process "
                f"({type(self._failed).__name__}: {self._failed})"
            ) from self._failed

    # State

    def _check_is_whole(self) -> None:
        self._check_not_failed()
        if self._begun:
            raise StepAlreadyBegun(
                f"{self._units[next(iter(self._begun))].name!r} was updated in backward and the others were not: "
                "call the optimizer's step first, or go on from a checkpoint in a new process"
            )

    def state_dict(self) -> dict[str, Any]:
        """As torch's; state of offloaded parameters is what it was after the last step, and only to be read.

        Raises:
            OptimizerStepFailed: an earlier step failed, so that the state is of two steps.
            StepAlreadyBegun: units were updated in backward, and the step did not follow yet.
        """
        self._check_is_whole()
        self.settle()
        light = self.state
        self.state = defaultdict(dict, {**light, **shown_state(self._units, self._store, light)})
        try:
            return super().state_dict()
        finally:
            self.state = light

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; offloaded state goes where it belongs, never over the device; errors as of `state_dict`.

        Raises:
            UnsupportedOptimizer: it has amsgrad where this optimizer has none, or the other way round.
        """
        self._check_is_whole()
        self._check_moments(state_dict)
        self.settle()
        places = self._places(state_dict)
        given = {index: places.get(index) for index in state_dict["state"]}
        left = {i: state for i, state in state_dict["state"].items() if given[i] not in self._unit_of}
        super().load_state_dict({**state_dict, "state": left})
        if self._kind is AdamW:  # torch's keeps it too, whatever Adam has saved
            for group in self.param_groups:
                group["decoupled_weight_decay"] = True
        self._on_device.state = self.state
        known = {given[i]: state for i, state in state_dict["state"].items() if given[i] in self._unit_of}
        for unit in self._units:
            for member in unit.members:
                member.steps.fill_(float(known.get(member.parameter, {STEP: 0.0})[STEP]))
        self._num_steps = int(max((float(state[STEP]) for state in state_dict["state"].values()), default=0))
        self._store.replace([state_of(unit, known) for unit in self._units], num_steps=self._num_steps)
        for place in range(len(self._units)):
            self._note_state(place)

    def _check_moments(self, state_dict: dict[str, Any]) -> None:
        for place, (own, given) in enumerate(zip(self.param_groups, state_dict["param_groups"], strict=False)):
            if bool(own["amsgrad"]) is not bool(given.get("amsgrad", own["amsgrad"])):
                raise UnsupportedOptimizer(
                    f"param_groups[{place}] was saved with amsgrad={given['amsgrad']}, and this optimizer has "
                    f"amsgrad={own['amsgrad']}: its state off the device has its room already, so build it alike"
                )

    def _places(self, state_dict: dict[str, Any]) -> dict[Any, nn.Parameter]:
        """Parameter of each index of a state dict; torch checks that the groups are as large."""
        own = (parameter for group in self.param_groups for parameter in group["params"])
        given = (index for group in state_dict["param_groups"] for index in group["params"])
        return dict(zip(given, own, strict=False))

    def _note_state(self, place: int) -> None:
        for member in self._units[place].members:
            if member.steps.item():
                self.state[member.parameter] = {STEP: member.steps}

    # Building

    def _make_units(self, units: Mapping[str, Sequence[nn.Parameter]]) -> list[UnitStep]:
        group_of = {p: place for place, group in enumerate(self.param_groups) for p in group["params"]}
        made = []
        for name, parameters in units.items():
            mine = [(p, group_of[p]) for p in parameters if p in group_of and p.requires_grad]
            if mine:
                made.append(UnitStep.of(name, mine, self._kind, self.param_groups))
        return made

    def _without_offloaded(self, device: Adam) -> Adam:
        """The optimizer of all other parameters; it shares the state of this one."""
        kept = []
        self._on_device_groups: list[tuple[dict[str, Any], int]] = []
        for place, group in enumerate(device.param_groups):
            mine = [parameter for parameter in group["params"] if parameter not in self._unit_of]
            if mine:
                group["params"] = mine
                kept.append(group)
                self._on_device_groups.append((group, place))
        device.param_groups = kept
        device.state = self.state
        return device


def _check_kind(kind: type[Adam], options: Mapping[str, Any]) -> None:
    if kind not in (Adam, AdamW):
        raise UnsupportedOptimizer(
            "the plan keeps optimizer state off the device, which this client can do for torch.optim.Adam and "
            f"AdamW, not for {kind.__name__}: use one of these, or plan again with optimizer_tier device"
        )
    for name in ("capturable", "differentiable"):
        if options.get(name):
            raise UnsupportedOptimizer(f"{name}=True needs the optimizer's state on the device: leave it out")


def _sample(gradients: Sequence[Tensor]) -> Tensor:
    """The first elements of the first gradient that has some: they tell whether all were scaled."""
    for gradient in gradients:
        if gradient.numel():
            return gradient.detach().reshape(-1)[:_SAMPLED_ELEMENTS].clone()
    return torch.empty(0)
