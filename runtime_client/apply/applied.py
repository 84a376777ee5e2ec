"""What a trainer holds after a plan was applied."""

from dataclasses import dataclass
from typing import cast

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from planner.schema import Decisions
from runtime_client.errors import OptimizerBuiltTooEarly
from runtime_client.fingerprint import iter_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPlan:
    """A sharded model with the mesh and the decisions that shaped it."""

    model: nn.Module
    mesh: DeviceMesh
    decisions: Decisions

    def begin_micro_batch(self, index: int) -> None:
        """Say which micro-batch of the optimizer step comes next, counted from 0.

        Matters only when the plan reduces gradients on the last micro-batch alone; without these calls such a
        model reduces on every one: the same gradients up to rounding, at the cost of more communication.

        Raises:
            IndexError: the plan has fewer micro-batches.
        """
        count = self.decisions.num_micro_batches
        if not 0 <= index < count:
            raise IndexError(f"micro-batch {index} of a plan with {count} micro-batches per optimizer step")
        if self.decisions.runtime.gradient_sync == "last_micro_batch":
            is_last = index == count - 1
            root = cast(FSDPModule, self.model)
            root.set_requires_gradient_sync(is_last)
            root.set_is_last_backward(is_last)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer that was built before sharding; it would silently train nothing.

        Raises:
            OptimizerBuiltTooEarly: it holds a parameter that the model no longer has.
        """
        names = {id(parameter): name for name, parameter in iter_parameters(self.model)}
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if id(parameter) not in names:
                    raise OptimizerBuiltTooEarly(
                        f"param_groups[{number}]['params'][{place}] (shape {tuple(parameter.shape)}) is not a "
                        "parameter of the sharded model: build the optimizer after apply_plan"
                    )
