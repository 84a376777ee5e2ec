"""`apply_decisions`: the one place that shards. Every check first, then the calls that the decisions ask for."""

from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from planner.schema import Decisions, DType, Layout, StateTier, UnitPlan
from runtime_client.apply.activation_offload import check_offloading, offload_activations
from runtime_client.apply.applied import AppliedPlan
from runtime_client.apply.checkpointing import check_checkpointing, checkpoint
from runtime_client.apply.early_optimizers import parameters_of, refuse_optimizers_of
from runtime_client.apply.forward_methods import check_forward_methods, register_forward_methods
from runtime_client.apply.knob_checks import check_supported
from runtime_client.apply.meshes import build_meshes
from runtime_client.apply.model_checks import check_not_sharded, check_parameters
from runtime_client.apply.modules import find_module
from runtime_client.apply.plan_checks import check_mesh
from runtime_client.apply.prefetch import check_prefetch, set_prefetch
from runtime_client.apply.shard_dims import ShardPlacement, check_shard_dims, shard_placement
from runtime_client.apply.training_checks import check_training
from runtime_client.apply.units import resolve_units
from runtime_client.ragged.buffer import PlannedBuffer
from runtime_client.ragged.checks import check_layouts
from runtime_client.ragged.gather import alias_gathers
from runtime_client.ragged.shard import owners_of, shard_ragged


def apply_decisions(model: nn.Module, decisions: Decisions, mesh: DeviceMesh) -> AppliedPlan:
    """Shard `model` in place over `mesh`, for decisions that do not come in a plan (dry runs, experiments).

    Nothing ties such decisions to a model: a trainer applies a plan with `apply_plan`, which also verifies its
    identity, the fingerprint of the model and the number of ranks.

    Args:
        model: A module that was not sharded before, on any device or on meta.
        decisions: What to do; its micro-batch numbers are only handed on.
        mesh: `(shard,)` or `(replicate, shard)`, dimensions named; further meshes of units are made over all ranks.

    Raises:
        ApplyError: one subclass for each reason to refuse (`runtime_client.errors`); the model is then untouched.
    """
    check_supported(decisions)
    check_mesh(mesh, decisions)
    check_not_sharded(model)
    check_units(model, decisions)
    return shard(model, decisions, mesh)


def check_units(model: nn.Module, decisions: Decisions) -> None:
    """What the decisions name must be in the model, and must be something that FSDP2 can do to it."""
    units = resolve_units(model, decisions)
    check_parameters(model, units)
    check_training(model)
    check_shard_dims(units, decisions)
    check_layouts(units, decisions)
    check_checkpointing(model, decisions)
    check_offloading(decisions)
    check_prefetch(decisions)
    check_forward_methods(model, decisions)


def shard(model: nn.Module, decisions: Decisions, mesh: DeviceMesh) -> AppliedPlan:
    """Carry out checked decisions."""
    before = parameters_of(model)
    placement = shard_placement(model, decisions)
    meshes = build_meshes(decisions, mesh)
    offload = offload_activations(model, decisions, mesh.device_type)
    for activation in decisions.activations:
        checkpoint(model, activation)
    aliased: list[tuple[nn.Module, PlannedBuffer]] = []
    owners = owners_of(model)
    for unit in decisions.units:
        modules = [find_module(model, path, where="decisions.units") for path in unit.modules]
        own_mesh = decisions.mesh_of(unit)
        call = partial(_fully_shard, modules, unit, meshes[own_mesh], _mixed_precision(decisions, unit), placement)
        if unit.layouts:
            buffers = shard_ragged(modules, _layouts(unit, decisions), owners, own_mesh.shard, call)
            aliased += [(modules[0], buffer) for buffer in buffers if unit.alias_gathers]
        else:
            call()
    if offload is not None:
        offload.watch_inputs(model)
    set_prefetch(model, decisions)
    _set_knobs(model, decisions)
    alias_gathers(model, aliased)
    register_forward_methods(model, decisions)
    refuse_optimizers_of(before, model)
    return AppliedPlan(model=model, mesh=mesh, decisions=decisions, activation_offload=offload)


def _mixed_precision(decisions: Decisions, unit: UnitPlan) -> MixedPrecisionPolicy:
    """Policy of a unit. Only the root casts what it returns: what an inner unit returns goes into modules whose
    parameters are in `param_dtype`, and those of the root itself take no other element type.
    """
    output_dtype = decisions.output_dtype if unit.modules == ("",) else None
    return MixedPrecisionPolicy(
        param_dtype=_torch_dtype(decisions.param_dtype),
        reduce_dtype=_torch_dtype(decisions.reduce_dtype),
        output_dtype=_torch_dtype(output_dtype),
        cast_forward_inputs=decisions.cast_forward_inputs,
    )


def _torch_dtype(dtype: DType | None) -> torch.dtype | None:
    if dtype is None:
        return None
    found = getattr(torch, dtype.value)
    assert isinstance(found, torch.dtype)
    return found


def _layouts(unit: UnitPlan, decisions: Decisions) -> list[Layout]:
    by_name = {layout.name: layout for layout in decisions.layouts}
    return [by_name[name] for name in unit.layouts]


def _fully_shard(
    modules: list[nn.Module],
    unit: UnitPlan,
    mesh: DeviceMesh,
    policy: MixedPrecisionPolicy,
    placement: ShardPlacement | None,
) -> None:
    fully_shard(
        modules[0] if len(modules) == 1 else modules,
        mesh=mesh,
        reshard_after_forward=unit.reshard_after_forward,
        shard_placement_fn=placement,
        mp_policy=policy,
        offload_policy=_offload(unit, mesh),
    )


def _offload(unit: UnitPlan, mesh: DeviceMesh) -> OffloadPolicy:
    """Host memory is pinned where there is a device to copy it to."""
    if unit.parameter_tier is StateTier.DEVICE:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")


def _set_knobs(model: nn.Module, decisions: Decisions) -> None:
    assert isinstance(model, FSDPModule)
    runtime = decisions.runtime
    if runtime.reduce_scatter_max_input_buffers > 1:
        model.set_reduce_scatter_max_input_buffers(runtime.reduce_scatter_max_input_buffers)
    if runtime.separate_reduce_scatter_group:
        model.set_separate_reduce_scatter_group(True)
    if runtime.reduce_scatter_unused_params:
        model.set_reduce_scatter_unused_params(True)
