"""`apply_plan`: every check first, then the calls of the plan."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from planner.schema import Plan, PlanBody
from runtime_client.agreement import AGREEMENT_DEADLINE_S, check_same_plan, has_process_group
from runtime_client.apply.applied import AppliedPlan
from runtime_client.apply.decisions import check_units, shard
from runtime_client.apply.forward_methods import with_forward_methods
from runtime_client.apply.knob_checks import check_supported
from runtime_client.apply.meshes import build_mesh
from runtime_client.apply.model_checks import check_fingerprint, check_not_sharded
from runtime_client.apply.plan_checks import (
    check_client_features,
    check_host_backend,
    check_process_group,
    check_torch_version,
    check_world,
    feasible_decisions,
    verified_body,
)


def apply_plan(
    model: nn.Module,
    plan: Plan | PlanBody,
    *,
    device_type: str | None = None,
    mesh: DeviceMesh | None = None,
    require_fingerprint: bool = True,
    deadline_s: float = AGREEMENT_DEADLINE_S,
    forward_methods: Iterable[str] = (),
) -> AppliedPlan:
    """Shard `model` in place as the plan says. Call it on every rank, before building the optimizer.

    Where units have meshes of their own, torch's `clip_grad_norm_` refuses the parameters of several meshes at once
    (torch 2.13); `AppliedPlan.clip_grad_norm` takes them.

    An optimizer that exists already keeps the old parameters and trains nothing: its first step is refused
    (`OptimizerBuiltTooEarly`). `AppliedPlan.check_optimizer` tells before.

    Args:
        model: The module that was described, on any device or on meta. Checkpoint and compile wrappers inside it
            are seen through.
        plan: A plan, or the bare body of one (which has no identity to verify).
        device_type: Device type of the mesh; by default the accelerator of this machine, else `cpu`.
        mesh: A mesh to use instead of one over all ranks: `(shard,)` or `(replicate, shard)`, dimensions named.
            Further meshes of units are made over all ranks.
        require_fingerprint: Refuse a model whose fingerprint is not the planned one. Switch it off only to try a
            plan on a model that differs in ways you know.
        deadline_s: Seconds that ranks wait for each other here, before anything is sharded.
        forward_methods: Methods that gather as forward does, beside those of the plan: `generate` of the root,
            `encoder.encode`.

    Raises:
        ApplyError: one subclass for each reason to refuse (`runtime_client.errors`); the model is then untouched.
            Where one rank refuses, all do.
    """
    body = plan if isinstance(plan, PlanBody) else plan.body
    device_type = mesh.device_type if mesh else device_type or _accelerator()
    forward_methods = tuple(forward_methods)
    refusal: Exception | None = None
    try:
        _check(model, plan, device_type, mesh, forward_methods, require_fingerprint=require_fingerprint)
    except Exception as error:
        refusal = error
        if not has_process_group():
            raise
    check_same_plan(body, refusal, deadline_s=deadline_s)
    decisions = with_forward_methods(feasible_decisions(body), forward_methods)
    mesh = mesh or build_mesh(decisions.mesh, device_type)
    return replace(shard(model, decisions, mesh), predictions=body.predictions)


def _check(
    model: nn.Module,
    plan: Plan | PlanBody,
    device_type: str,
    mesh: DeviceMesh | None,
    forward_methods: Iterable[str],
    *,
    require_fingerprint: bool,
) -> None:
    """All that one rank can find out alone."""
    body = verified_body(plan)
    decisions = with_forward_methods(feasible_decisions(body), forward_methods)
    check_torch_version(body)
    check_client_features(body)
    check_supported(decisions)
    check_process_group(body)
    check_world(body, decisions, mesh)
    check_not_sharded(model)
    if require_fingerprint:
        check_fingerprint(model, body.model_fingerprint)
    check_units(model, decisions)
    check_host_backend(decisions, device_type)


def _accelerator() -> str:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator is not None else "cpu"
