"""Plans written by hand: only what applying them needs, all else empty."""

from collections.abc import Sequence

from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Decisions,
    InputHashes,
    MeshPlan,
    PlanBody,
    Requirements,
    UnitPlan,
)

NO_HASH = "sha256:" + "0" * 64


def unit(*modules: str, **fields: object) -> UnitPlan:
    return UnitPlan.model_validate({"modules": modules, **fields})


def decisions(units: Sequence[UnitPlan], *, shard: int, replicate: int = 1, **fields: object) -> Decisions:
    defaults = {"micro_batch": 1, "num_micro_batches": 1}
    return Decisions.model_validate(
        {"mesh": MeshPlan(replicate=replicate, shard=shard), "units": tuple(units), **defaults, **fields}
    )


def checkpointed(*modules: str) -> tuple[ActivationPlan, ...]:
    return tuple(ActivationPlan(module=module, policy=ActivationPolicy.FULL) for module in modules)


def body(
    made: Decisions | None,
    *,
    fingerprint: str = NO_HASH,
    world_size: int | None = None,
    requires: Requirements | None = None,
    workload: str = NO_HASH,
    **fields: object,
) -> PlanBody:
    return PlanBody.model_validate(
        {
            "name": "by hand",
            "outcome": "feasible" if made else "infeasible",
            "model_fingerprint": fingerprint,
            "world_size": world_size or (made.mesh.num_ranks if made else 1),
            "decisions": made,
            "inputs": InputHashes(model=NO_HASH, cluster=NO_HASH, workload=workload, request=NO_HASH),
            "requires": requires or Requirements(),
            "planner_version": "0",
            **fields,
        }
    )
