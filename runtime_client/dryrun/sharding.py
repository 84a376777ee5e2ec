"""Bare decisions applied the way a plan is: by `apply_plan`, checks included."""

import hashlib

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from planner.schema import Decisions, InputHashes, PlanBody
from runtime_client.apply import AppliedPlan, apply_plan
from runtime_client.fingerprint import fingerprint


def apply_decisions(model: nn.Module, decisions: Decisions, mesh: DeviceMesh) -> AppliedPlan:
    """Shard `model` in place. The decisions become the body of a plan that is made for this very model.

    Raises:
        ApplyError: as `apply_plan`.
    """
    digest = f"sha256:{hashlib.sha256(decisions.model_dump_json().encode()).hexdigest()}"
    body = PlanBody(
        name="dry run",
        outcome="feasible",
        model_fingerprint=fingerprint(model),
        world_size=decisions.mesh.num_ranks,
        decisions=decisions,
        inputs=InputHashes(model=digest, cluster=digest, workload=digest, request=digest),
        planner_version="dry run",
    )
    return apply_plan(model, body, mesh=mesh)
