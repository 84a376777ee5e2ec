"""A plan's request and decisions under other sizes, ranks or memory, or with knobs that are forbidden.

Decisions are carried over as they are, or with a knob put back to FSDP2's default; each such step is a note. Where
that is not possible, nothing is guessed: the error says what does not fit and that a solve answers it.
"""

from collections.abc import Callable, Mapping

from pydantic import Field

from planner.schema import (
    ActivationPolicy,
    ClientFeature,
    ClusterDescription,
    Decisions,
    GradientSync,
    InconsistentRequest,
    MeshPlan,
    PlanRequest,
    StateTier,
    UnitPlan,
)
from planner.schema.base import MAX_NAME, Bytes, Part, Positive

Noted = tuple[Decisions, str]
"""Decisions, and what was changed in them in words; empty when nothing was."""


class DecisionsDoNotFit(InconsistentRequest):
    """The decisions of a plan cannot be carried over to what was asked."""

    code = "decisions_do_not_fit"

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; ask for a solve of the changed request instead")


class Change(Part):
    """What is different; None leaves what the plan was made for."""

    micro_batch: Positive | None = None
    sequence: Positive | None = None
    global_batch: Positive | None = None
    memory_bytes: Bytes | None = None
    """Device memory for tensors."""
    num_ranks: Positive | None = None
    forbidden: tuple[ClientFeature, ...] = Field(default=(), max_length=len(ClientFeature))
    """Knobs that must not be used."""


def changed_request(request: PlanRequest, change: Change) -> PlanRequest:
    """The request of a plan with the change made.

    Raises:
        InconsistentRequest: the cluster has no such number of ranks.
    """
    sizes = {name: getattr(change, name) for name in ("micro_batch", "sequence", "global_batch")}
    given = {name: value for name, value in sizes.items() if value is not None}
    updates: dict[str, object] = {"warm_start": None, "workload": request.workload.model_copy(update=given)}
    if change.micro_batch is not None:
        updates["micro_batches"] = ()
    if change.memory_bytes is not None:
        updates["limits"] = request.limits.model_copy(update={"memory_bytes": change.memory_bytes})
    if change.num_ranks not in (None, request.cluster.num_devices):
        updates["cluster"] = with_ranks(request.cluster, change.num_ranks)
        updates["fixed"] = tuple(choice for choice in request.fixed if not choice.knob.startswith("mesh."))
    if change.forbidden:
        known = tuple(ClientFeature) if request.client_features is None else request.client_features
        updates["client_features"] = tuple(feature for feature in known if feature not in change.forbidden)
    return request.model_copy(update=updates)


def with_ranks(cluster: ClusterDescription, num_ranks: int) -> ClusterDescription:
    """The same kind of nodes with so many devices: whole nodes, or a part of one. It has a name of its own, since a
    service takes the newest description of a name for what that cluster is now.

    Raises:
        InconsistentRequest: that is neither, the nodes are not all of one kind, or no link between nodes is known.
    """
    if len(cluster.node_groups) > 1:
        raise InconsistentRequest(
            f"num_ranks: cluster {cluster.name!r} has {len(cluster.node_groups)} kinds of nodes; describe "
            "the other cluster, and plan for it"
        )
    group = cluster.node_groups[0]
    per_node = min(group.devices_per_node, num_ranks)
    if num_ranks % per_node:
        raise InconsistentRequest(
            f"num_ranks: {num_ranks} ranks are no whole number of nodes with {per_node} devices; "
            f"take {num_ranks // per_node * per_node} or {-(-num_ranks // per_node) * per_node}"
        )
    num_nodes = num_ranks // per_node
    other = group.model_copy(update={"num_nodes": num_nodes, "devices_per_node": per_node})
    link = cluster.inter_node or (group.intra_node if num_nodes > 1 else None)
    suffix = f", {num_ranks} ranks"
    name = f"{cluster.name[: MAX_NAME - len(suffix)]}{suffix}"
    return cluster.model_copy(update={"name": name, "node_groups": (other,), "inter_node": link})


def carried_over(decisions: Decisions, request: PlanRequest, change: Change) -> tuple[Decisions, tuple[str, ...]]:
    """Decisions for a changed request, and what was changed in them.

    Args:
        decisions: those of the plan.
        request: from `changed_request`.
        change: the same change.

    Raises:
        DecisionsDoNotFit: they cannot be carried over.
        InconsistentRequest: the global batch is no multiple of micro-batch x ranks.
    """
    notes = []
    for feature in change.forbidden:
        decisions, note = _WITHOUT[feature](decisions)
        notes.append(note)
    decisions, note = _on_ranks(decisions, request.cluster.num_devices)
    notes.append(note)
    decisions, note = _in_batches(decisions, request, change)
    notes.append(note)
    return decisions, tuple(note for note in notes if note)


def _on_ranks(decisions: Decisions, num_ranks: int) -> Noted:
    mesh = decisions.mesh
    if mesh.num_ranks == num_ranks:
        return decisions, ""
    if any(unit.mesh is not None for unit in decisions.units):
        raise DecisionsDoNotFit(f"some units have a mesh of their own over {mesh.num_ranks} ranks")
    if mesh.replicate > 1:
        if num_ranks % mesh.shard:
            raise DecisionsDoNotFit(f"{num_ranks} ranks are no multiple of the plan's shard degree {mesh.shard}")
        return (
            decisions.model_copy(update={"mesh": MeshPlan(replicate=num_ranks // mesh.shard, shard=mesh.shard)}),
            f"mesh {num_ranks // mesh.shard} x {mesh.shard} instead of {mesh.replicate} x {mesh.shard}",
        )
    if decisions.layouts or decisions.owners:
        raise DecisionsDoNotFit(f"its buffers and owners are laid out for {mesh.shard} ranks")
    partial = {unit.reshard_after_forward for unit in decisions.units if type(unit.reshard_after_forward) is int}
    for degree in partial:
        if num_ranks % degree:
            raise DecisionsDoNotFit(f"some units reshard to {degree} ranks, which do not divide {num_ranks}")
    return (
        decisions.model_copy(update={"mesh": MeshPlan(shard=num_ranks)}),
        f"sharded over {num_ranks} ranks instead of {mesh.shard}",
    )


def _in_batches(decisions: Decisions, request: PlanRequest, change: Change) -> Noted:
    micro_batch = decisions.micro_batch if change.micro_batch is None else change.micro_batch
    global_batch, ranks = request.workload.global_batch, decisions.mesh.num_ranks
    if global_batch % (micro_batch * ranks):
        below = global_batch // (micro_batch * ranks) * micro_batch * ranks
        choices = " or ".join(str(size) for size in (below, below + micro_batch * ranks) if size)
        raise InconsistentRequest(
            f"micro-batch {micro_batch} x {ranks} ranks do not divide the global batch of {global_batch} "
            f"sequences; take a global batch of {choices}"
        )
    num = global_batch // (micro_batch * ranks)
    changed = decisions.model_copy(update={"micro_batch": micro_batch, "num_micro_batches": num})
    note = ""
    if num != decisions.num_micro_batches:
        before = f"{decisions.num_micro_batches} of {decisions.micro_batch}"
        note = f"{num} micro-batches of {micro_batch} instead of {before}"
        if num == 1:
            changed, _ = _without_accumulation(changed)
    return changed, note


def _units(
    decisions: Decisions, is_used: Callable[[UnitPlan], bool], values: Mapping[str, object], note: str
) -> Noted:
    if not any(map(is_used, decisions.units)):
        return decisions, ""
    units = tuple(unit.model_copy(update=dict(values)) if is_used(unit) else unit for unit in decisions.units)
    return decisions.model_copy(update={"units": units}), note


def _without_policy(policy: ActivationPolicy) -> Callable[[Decisions], Noted]:
    def without(decisions: Decisions) -> Noted:
        kept = tuple(entry for entry in decisions.activations if entry.policy is not policy)
        num = len(decisions.activations) - len(kept)
        if not num:
            return decisions, ""
        words = f"activations of {num} modules are kept instead of {_POLICY_WORDS[policy]}"
        return decisions.model_copy(update={"activations": kept}), words

    return without


_POLICY_WORDS = {
    ActivationPolicy.FULL: "checkpointed in full",
    ActivationPolicy.SELECTIVE: "checkpointed selectively",
    ActivationPolicy.OFFLOAD: "offloaded",
}


def _runtime(**values: object) -> Callable[[Decisions], Noted]:
    def without(decisions: Decisions) -> Noted:
        runtime = decisions.runtime.model_copy(update=values)
        if runtime == decisions.runtime:
            return decisions, ""
        words = ", ".join(f"{name} {value}" for name, value in values.items())
        return decisions.model_copy(update={"runtime": runtime}), words

    return without


def _without_hybrid_mesh(decisions: Decisions) -> Noted:
    decisions, _ = _without_unit_meshes(decisions)
    mesh = decisions.mesh
    if mesh.replicate == 1:
        return decisions, ""
    if decisions.layouts or decisions.owners:
        raise DecisionsDoNotFit(f"its buffers and owners are laid out for {mesh.shard} ranks")
    return (
        decisions.model_copy(update={"mesh": MeshPlan(shard=mesh.num_ranks)}),
        f"sharded over all {mesh.num_ranks} ranks",
    )


def _without_unit_meshes(decisions: Decisions) -> Noted:
    if any(unit.mesh is not None and unit.layouts for unit in decisions.units):
        raise DecisionsDoNotFit("buffers of units with a mesh of their own are laid out for it")
    note = "every unit has the mesh of the plan"
    return _units(decisions, lambda unit: unit.mesh is not None, {"mesh": None}, note)


def _without_groups(decisions: Decisions) -> Noted:
    grouped = [unit for unit in decisions.units if len(unit.modules) > 1]
    if not grouped:
        return decisions, ""
    if any(unit.layouts for unit in grouped):
        raise DecisionsDoNotFit("units of several modules have ragged buffers")
    units = tuple(
        unit if len(unit.modules) == 1 else unit.model_copy(update={"modules": (module,), "num_parameters": 0})
        for unit in decisions.units
        for module in unit.modules
    )
    return decisions.model_copy(update={"units": units}), f"{len(grouped)} units are cut into one for each module"


def _without_layouts(decisions: Decisions) -> Noted:
    if decisions.owners:
        raise DecisionsDoNotFit("matrices of Muon have owners, whose shards are laid out")
    if not decisions.layouts:
        return decisions, ""
    cleared, _ = _units(decisions, lambda unit: bool(unit.layouts), {"layouts": (), "alias_gathers": False}, "")
    return cleared.model_copy(update={"layouts": ()}), "FSDP2's even shards instead of ragged buffers"


def _without_owners(decisions: Decisions) -> Noted:
    if decisions.owners:
        raise DecisionsDoNotFit("matrices of Muon have owners")
    return decisions, ""


def _without_accumulation(decisions: Decisions) -> Noted:
    decisions, first = _runtime(gradient_sync=GradientSync.EVERY_MICRO_BATCH)(decisions)
    decisions, second = _units(
        decisions,
        lambda unit: not unit.reshard_after_backward,
        {"reshard_after_backward": True},
        "units are resharded after backward",
    )
    return decisions, ", ".join(note for note in (first, second) if note)


def _without_prefetch(decisions: Decisions) -> Noted:
    return _units(
        decisions,
        lambda unit: bool(unit.forward_prefetch or unit.backward_prefetch),
        {"forward_prefetch": (), "backward_prefetch": ()},
        "prefetch is implicit",
    )


def _without_partial_reshard(decisions: Decisions) -> Noted:
    return _units(
        decisions,
        lambda unit: type(unit.reshard_after_forward) is int,
        {"reshard_after_forward": True},
        "units reshard to all ranks of their shard group",
    )


def _without_aliases(decisions: Decisions) -> Noted:
    return _units(
        decisions, lambda unit: unit.alias_gathers, {"alias_gathers": False}, "ragged units are copied out"
    )


def _without_offload(decisions: Decisions) -> Noted:
    on_device = {"parameter_tier": StateTier.DEVICE, "optimizer_tier": StateTier.DEVICE}
    return _units(
        decisions,
        lambda unit: unit.parameter_tier is not StateTier.DEVICE,
        on_device,
        "parameters and optimizer state stay on the device",
    )


def _without_state_in(tier: StateTier) -> Callable[[Decisions], Noted]:
    return lambda decisions: _units(
        decisions,
        lambda unit: unit.parameter_tier is StateTier.DEVICE and unit.optimizer_tier is tier,
        {"optimizer_tier": StateTier.DEVICE},
        "optimizer state stays on the device",
    )


_WITHOUT: Mapping[ClientFeature, Callable[[Decisions], Noted]] = {
    ClientFeature.HYBRID_MESH: _without_hybrid_mesh,
    ClientFeature.UNIT_MESH: _without_unit_meshes,
    ClientFeature.PREFETCH: _without_prefetch,
    ClientFeature.RESHARD_INTEGER: _without_partial_reshard,
    ClientFeature.CHECKPOINT_FULL: _without_policy(ActivationPolicy.FULL),
    ClientFeature.CHECKPOINT_SELECTIVE: _without_policy(ActivationPolicy.SELECTIVE),
    ClientFeature.GROUPED_UNITS: _without_groups,
    ClientFeature.RAGGED_LAYOUT: _without_layouts,
    ClientFeature.ALIAS_GATHERS: _without_aliases,
    ClientFeature.MUON_OWNERS: _without_owners,
    ClientFeature.OFFLOAD: _without_offload,
    ClientFeature.OPTIMIZER_OFFLOAD: _without_state_in(StateTier.HOST),
    ClientFeature.OPTIMIZER_NVME: _without_state_in(StateTier.NVME),
    ClientFeature.ACTIVATION_OFFLOAD: _without_policy(ActivationPolicy.OFFLOAD),
    ClientFeature.REDUCE_SCATTER_BUFFERS: _runtime(reduce_scatter_max_input_buffers=1),
    ClientFeature.SEPARATE_REDUCE_SCATTER_GROUP: _runtime(separate_reduce_scatter_group=False),
    ClientFeature.ACCUMULATION: _without_accumulation,
}
