"""`apply_plan`: every check first, then the calls of the plan."""

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from planner.schema import ActivationPolicy, Decisions, DType, MeshPlan, Plan, PlanBody, UnitPlan
from runtime_client.apply.applied import AppliedPlan
from runtime_client.apply.model_checks import (
    check_checkpointing,
    check_fingerprint,
    check_not_sharded,
    check_parameters,
    is_checkpointed,
)
from runtime_client.apply.modules import find_module, replace_module
from runtime_client.apply.plan_checks import (
    check_client_features,
    check_supported,
    check_torch_version,
    check_world,
    feasible_decisions,
    verified_body,
)
from runtime_client.apply.prefetch import check_prefetch, set_prefetch
from runtime_client.apply.units import resolve_units


def apply_plan(
    model: nn.Module,
    plan: Plan | PlanBody,
    *,
    device_type: str | None = None,
    mesh: DeviceMesh | None = None,
    require_fingerprint: bool = True,
) -> AppliedPlan:
    """Shard `model` in place as the plan says. Call it on every rank, before building the optimizer.

    An optimizer that exists already keeps the old parameters and trains nothing; that cannot be seen from
    here, so hand yours to `AppliedPlan.check_optimizer` afterwards.

    Args:
        model: The module that was described, on any device or on meta. Checkpoint and compile wrappers inside it
            are seen through.
        plan: A plan, or the bare body of one (which has no identity to verify).
        device_type: Device type of the mesh; by default the accelerator of this machine, else `cpu`.
        mesh: A mesh to use instead of one over all ranks: `(shard,)` or `(replicate, shard)`, dimensions named.
        require_fingerprint: Refuse a model whose fingerprint is not the planned one. Switch it off only to try a
            plan on a model that differs in ways you know.

    Raises:
        ApplyError: one subclass for each reason to refuse (`runtime_client.errors`); the model is then untouched.
    """
    body = verified_body(plan)
    decisions = feasible_decisions(body)
    check_torch_version(body)
    check_client_features(body)
    check_supported(decisions)
    check_world(body, decisions, mesh)
    check_not_sharded(model)
    if require_fingerprint:
        check_fingerprint(model, body)
    check_parameters(resolve_units(model, decisions))
    check_checkpointing(model, decisions)
    check_prefetch(decisions)

    mesh = mesh or _build_mesh(decisions.mesh, device_type)
    _checkpoint_activations(model, decisions)
    policy = _mixed_precision(decisions)
    for unit in decisions.units:
        _shard_unit(model, unit, mesh, policy)
    set_prefetch(model, decisions)
    _set_knobs(model, decisions)
    return AppliedPlan(model=model, mesh=mesh, decisions=decisions)


def _build_mesh(plan: MeshPlan, device_type: str | None) -> DeviceMesh:
    if device_type is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        device_type = accelerator.type if accelerator is not None else "cpu"
    if plan.replicate == 1:
        return init_device_mesh(device_type, (plan.shard,), mesh_dim_names=("shard",))
    return init_device_mesh(device_type, (plan.replicate, plan.shard), mesh_dim_names=("replicate", "shard"))


def _checkpoint_activations(model: nn.Module, decisions: Decisions) -> None:
    for activation in decisions.activations:
        if activation.policy is ActivationPolicy.FULL:
            module = find_module(model, activation.module, where="decisions.activations")
            if not is_checkpointed(module):
                replace_module(model, module, checkpoint_wrapper(module, CheckpointImpl.NO_REENTRANT))


def _mixed_precision(decisions: Decisions) -> MixedPrecisionPolicy:
    return MixedPrecisionPolicy(
        param_dtype=_torch_dtype(decisions.param_dtype),
        reduce_dtype=_torch_dtype(decisions.reduce_dtype),
        output_dtype=_torch_dtype(decisions.output_dtype),
        cast_forward_inputs=decisions.cast_forward_inputs,
    )


def _torch_dtype(dtype: DType | None) -> torch.dtype | None:
    if dtype is None:
        return None
    found = getattr(torch, dtype.value)
    assert isinstance(found, torch.dtype)
    return found


def _shard_unit(model: nn.Module, unit: UnitPlan, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    modules = [find_module(model, path, where="decisions.units") for path in unit.modules]
    if len(modules) == 1:
        fully_shard(modules[0], mesh=mesh, reshard_after_forward=unit.reshard_after_forward, mp_policy=policy)
    else:
        fully_shard(modules, mesh=mesh, reshard_after_forward=unit.reshard_after_forward, mp_policy=policy)


def _set_knobs(model: nn.Module, decisions: Decisions) -> None:
    assert isinstance(model, FSDPModule)
    if decisions.runtime.reduce_scatter_max_input_buffers > 1:
        model.set_reduce_scatter_max_input_buffers(decisions.runtime.reduce_scatter_max_input_buffers)
    if decisions.runtime.separate_reduce_scatter_group:
        model.set_separate_reduce_scatter_group(True)
