"""Checks of a plan against this client and this process, before any model is looked at."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from planner.schema import Decisions, Plan, PlanBody, StateTier
from runtime_client.agreement import has_process_group
from runtime_client.apply.versions import satisfies
from runtime_client.errors import (
    HostBackendMissing,
    InfeasiblePlan,
    MeshMismatch,
    MissingClientFeature,
    PlanIdentityMismatch,
    ProcessGroupMissing,
    TorchVersionMismatch,
    WorldSizeMismatch,
)
from runtime_client.features import CLIENT_FEATURES


def verified_body(plan: Plan | PlanBody) -> PlanBody:
    """The body of a plan whose identity holds; a bare body has none to check."""
    if isinstance(plan, PlanBody):
        return plan
    if not plan.verify():
        raise PlanIdentityMismatch(
            f"envelope.plan_id is {plan.envelope.plan_id}, but the body is {plan.body.content_hash()}: the plan "
            "was changed after it was made. Fetch it again; to apply a plan edited by hand, pass its body alone."
        )
    return plan.body


def feasible_decisions(body: PlanBody) -> Decisions:
    """The decisions of a plan that has some."""
    if body.outcome == "feasible" and body.decisions is not None:
        return body.decisions
    found = body.infeasibility
    reason = f": {found.reason}" if found else ""
    advice = " ".join(found.advice) if found and found.advice else "Plan again with more ranks or memory."
    raise InfeasiblePlan(f"plan {body.name!r} is infeasible{reason}. {advice}")


def check_torch_version(body: PlanBody) -> None:
    """`requires.torch` against the installed torch."""
    installed, wanted = str(torch.__version__), body.requires.torch
    try:
        met = satisfies(installed, wanted)
    except ValueError as error:
        raise TorchVersionMismatch(f"requires.torch: {error}") from None
    if not met:
        raise TorchVersionMismatch(
            f"requires.torch is {wanted!r}, but torch {installed} is installed. Install a version in that range, "
            "or plan again with workload.torch_version set to the installed one."
        )


def check_client_features(body: PlanBody) -> None:
    """`requires.client_features` against what this client applies."""
    missing = sorted(set(body.requires.client_features) - set(CLIENT_FEATURES))
    if missing:
        raise MissingClientFeature(
            f"requires.client_features: this client cannot apply {', '.join(missing)}. Upgrade it, or plan again "
            f"with client_features = {[str(feature) for feature in CLIENT_FEATURES]}."
        )


def check_process_group(body: PlanBody) -> None:
    """Without one there are no other ranks to speak to."""
    if not has_process_group():
        raise ProcessGroupMissing(
            f"the plan is for {body.world_size} ranks, but torch.distributed is not initialised. Start the script "
            "with torchrun and call torch.distributed.init_process_group first."
        )


def check_world(body: PlanBody, decisions: Decisions, mesh: DeviceMesh | None) -> None:
    """The ranks of this job (or of the mesh handed over) against those of the plan."""
    wanted = decisions.mesh
    if wanted.num_ranks != body.world_size:
        raise WorldSizeMismatch(
            f"decisions.mesh covers {wanted.num_ranks} ranks, but world_size is {body.world_size}: the plan "
            "contradicts itself. Plan again."
        )
    num_ranks = dist.get_world_size() if mesh is None else mesh.size()
    if num_ranks != body.world_size:
        raise WorldSizeMismatch(
            f"world_size is {body.world_size}, but {'this job' if mesh is None else 'the mesh'} has {num_ranks} "
            f"ranks. Start {body.world_size} ranks, or plan again for {num_ranks}."
        )
    if mesh is not None:
        check_mesh(mesh, decisions)


def check_host_backend(decisions: Decisions, device_type: str) -> None:
    """Offloaded units have their gradients on the host, where NCCL alone reduces nothing.

    Without a backend there, clipping by the global norm, `full_tensor` and distributed checkpoints fail after hours
    of training ("No backend type associated with device type cpu").
    """
    offloaded = [unit.modules[0] for unit in decisions.units if unit.parameter_tier is StateTier.HOST]
    if device_type == "cpu" or not offloaded:
        return
    backends = dist.get_backend_config()
    if not any(part.partition(":")[0] == "cpu" for part in backends.split(",")):
        raise HostBackendMissing(
            f"{len(offloaded)} units are in host memory, {offloaded[0] or 'the root'!r} first, but the process "
            f"group has backends {backends!r} and none for 'cpu', which clipping and checkpoints need. Call "
            f"init_process_group(backend='cpu:gloo,{device_type}:...')."
        )


def check_mesh(mesh: DeviceMesh, decisions: Decisions) -> None:
    """Shape and names of a mesh that was handed over."""
    wanted = decisions.mesh
    shape = (wanted.shard,) if wanted.replicate == 1 else (wanted.replicate, wanted.shard)
    if tuple(mesh.shape) != shape:
        raise MeshMismatch(f"decisions.mesh is {shape}, but the mesh handed over is {tuple(mesh.shape)}.")
    if mesh.mesh_dim_names is None:
        raise MeshMismatch("the mesh handed over has no mesh_dim_names; name its dimensions in init_device_mesh.")
