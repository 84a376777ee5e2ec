"""Checks of the knobs of a plan that need no model: what this client, or the installed torch, cannot carry out."""

import difflib
from collections.abc import Iterator

import torch
from torch.distributed.fsdp import FSDPModule

from planner.schema import ActivationPlan, ActivationPolicy, Decisions, DType, GradientSync, StateTier, UnitPlan
from runtime_client.errors import OffloadTierMismatch, UnknownSavedOperation, UnsupportedPlan, UnsupportedPrecision
from runtime_client.saved_ops import UnknownOperation, resolve_saved_ops

_REMEDY = "Plan again with the client_features of this client."
_PRECISIONS = (DType.FLOAT64, DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


def check_supported(decisions: Decisions) -> None:
    """Refuse decisions that this client, or the installed torch, cannot carry out."""
    for index, unit in enumerate(decisions.units):
        where = f"decisions.units[{index}]"
        _check_tiers(unit, where)
        _check_mesh(unit, decisions, f"{where}.mesh")
        _check_reshard(unit.reshard_after_forward, decisions.mesh_of(unit).shard, f"{where}.reshard_after_forward")
    for index, activation in enumerate(decisions.activations):
        _check_activation(activation, f"decisions.activations[{index}]")
    _check_one_tier(decisions)
    _check_precision(decisions)
    _check_torch(decisions)


def _check_tiers(unit: UnitPlan, where: str) -> None:
    if unit.parameter_tier is StateTier.NVME:
        raise UnsupportedPlan(f"{where}.parameter_tier: offload to nvme cannot be applied. {_REMEDY}")
    if unit.parameter_tier is StateTier.HOST and unit.optimizer_tier is not StateTier.HOST:
        raise OffloadTierMismatch(
            f"{where}: parameter_tier is {unit.parameter_tier}, but optimizer_tier is {unit.optimizer_tier}. The "
            "optimizer's state of parameters in host memory is there too: set both tiers to the same."
        )


def _check_one_tier(decisions: Decisions) -> None:
    """An optimizer has one store for the state of parameters on the device that is not there."""
    units = [unit for unit in decisions.units if unit.parameter_tier is StateTier.DEVICE]
    if {StateTier.HOST, StateTier.NVME} <= {unit.optimizer_tier for unit in units}:
        raise UnsupportedPlan(
            "decisions.units[..].optimizer_tier: state of parameters on the device is in part on the host, in "
            "part on nvme. Choose one of the two for all that is not on the device."
        )


def _check_mesh(unit: UnitPlan, decisions: Decisions, where: str) -> None:
    num_ranks = decisions.mesh.num_ranks
    if unit.mesh is not None and unit.mesh.num_ranks != num_ranks:
        raise UnsupportedPlan(
            f"{where} covers {unit.mesh.num_ranks} ranks, but decisions.mesh covers {num_ranks}: every unit is on "
            "all ranks. Plan again."
        )


def _check_reshard(value: bool | int | None, shard: int, where: str) -> None:
    if isinstance(value, bool) or value is None:
        return
    if not 1 < value < shard or shard % value:
        raise UnsupportedPlan(
            f"{where} is {value}, which is not a divisor of the shard degree {shard} between 1 and {shard}. "
            "Use true, false or such a divisor."
        )


def _check_activation(activation: ActivationPlan, where: str) -> None:
    is_selective = activation.policy is ActivationPolicy.SELECTIVE
    if is_selective and not activation.saved_ops:
        raise UnsupportedPlan(
            f"{where}.saved_ops: selective checkpointing of {activation.module!r} keeps no outputs. Name "
            "operations, or use policy 'full'."
        )
    if activation.saved_ops and not is_selective:
        raise UnsupportedPlan(
            f"{where}.saved_ops: policy {activation.policy} of {activation.module!r} keeps the outputs of no "
            "operations. Leave saved_ops out, or use policy 'selective'."
        )
    for name in activation.saved_ops:
        _check_operation(name, f"{where}.saved_ops")


def _check_operation(name: str, where: str) -> None:
    try:
        resolve_saved_ops((name,))
    except UnknownOperation:
        near = ", ".join(difflib.get_close_matches(name, _operation_names(), n=3))
        raise UnknownSavedOperation(
            f"{where}: torch {torch.__version__} has no operation {name!r}"
            f"{f' (nearest: {near})' if near else ''}. Name operations like aten.mm.default, import the library "
            "that defines them, or plan again with this torch."
        ) from None


def _operation_names() -> Iterator[str]:
    for name in torch._C._dispatch_get_all_op_names():
        full = name.replace("::", ".")
        yield full if full.count(".") > 1 else f"{full}.default"


def _check_precision(decisions: Decisions) -> None:
    for field in ("param_dtype", "reduce_dtype", "output_dtype"):
        dtype = getattr(decisions, field)
        if dtype is not None and dtype not in _PRECISIONS:
            raise UnsupportedPrecision(
                f"decisions.{field} is {dtype}; FSDP2 computes and reduces in {', '.join(_PRECISIONS)}. Use one of "
                "these, or leave it out."
            )


def _check_torch(decisions: Decisions) -> None:
    for field, method in _needed_methods(decisions):
        if not hasattr(FSDPModule, method):
            raise UnsupportedPlan(
                f"decisions.{field}: torch {torch.__version__} has no {method}. Upgrade torch, or plan "
                "again with workload.torch_version set to the installed one."
            )


def _needed_methods(decisions: Decisions) -> Iterator[tuple[str, str]]:
    runtime = decisions.runtime
    if runtime.reduce_scatter_max_input_buffers > 1:
        yield "runtime.reduce_scatter_max_input_buffers", "set_reduce_scatter_max_input_buffers"
    if runtime.separate_reduce_scatter_group:
        yield "runtime.separate_reduce_scatter_group", "set_separate_reduce_scatter_group"
    if runtime.reduce_scatter_unused_params:
        yield "runtime.reduce_scatter_unused_params", "set_reduce_scatter_unused_params"
    if runtime.post_optimizer_event:
        yield "runtime.post_optimizer_event", "set_post_optim_event"
    if runtime.gradient_sync is GradientSync.ALL_REDUCE_ON_LAST:
        yield "runtime.gradient_sync", "set_requires_all_reduce"
    for index, unit in enumerate(decisions.units):
        if not unit.reshard_after_backward:
            yield f"units[{index}].reshard_after_backward", "set_reshard_after_backward"
