"""Knobs that FSDP2 refuses, or that go wrong in it, together."""

from collections import Counter
from collections.abc import Sequence

from planner.program.sizes import UnitBytes
from planner.program.step import Resharding
from planner.program.units import Partition
from planner.schema import (
    ActivationPolicy,
    Decisions,
    GradientSync,
    InconsistentRequest,
    StateTier,
    UnitPlan,
    UnsupportedField,
)


def require_sound_zeros(decisions: Decisions, parts: Partition, sizes: Sequence[UnitBytes]) -> None:
    """FSDP2 makes zeros in the type of gradients, and refuses to reduce them with sums in another type."""
    sums = decisions.runtime.gradient_sync is GradientSync.LAST_MICRO_BATCH and decisions.num_micro_batches > 1
    for unit, size in zip(parts.units, sizes, strict=True):
        if sums and size.zero_gradients and size.accumulates_apart:
            raise InconsistentRequest(
                f"decisions.runtime.reduce_scatter_unused_params: unit {unit.name!r} has parameters without a "
                "gradient, and torch 2.13 refuses to reduce their zeros with gradients that were accumulated in "
                "another type; reduce on every micro-batch, or in the type of the gradients"
            )


def require_sound_tiers(plans: Sequence[UnitPlan]) -> None:
    """Shards are on the device or the host, and so is optimizer state; that of the device can be away from it."""
    if any(unit.parameter_tier is StateTier.NVME for unit in plans):
        raise UnsupportedField("decisions.units[..].parameter_tier", "leave it at its default")
    off_device = set()
    for unit in plans:
        if unit.parameter_tier is StateTier.DEVICE:
            off_device.add(unit.optimizer_tier)
        elif unit.optimizer_tier is not unit.parameter_tier:
            raise InconsistentRequest(
                f"decisions.units[..].optimizer_tier of {unit.modules[0] or '(root)'!r} is {unit.optimizer_tier}: "
                "optimizer state of parameters in host memory is there too; set both tiers to host"
            )
    if off_device >= {StateTier.HOST, StateTier.NVME}:
        raise InconsistentRequest(
            "decisions.units[..].optimizer_tier is host for some units and nvme for others; choose one of the two "
            "for all that are not on the device"
        )


def require_sound_meshes(decisions: Decisions) -> None:
    """A unit has a mesh of its own only where it differs; the root has none, and each covers all ranks."""
    for unit in decisions.units:
        if unit.mesh is None:
            continue
        where = f"decisions.units[..].mesh of {unit.modules[0] or '(root)'!r}"
        if unit.modules == ("",):
            raise InconsistentRequest(f"{where}: the root is on the mesh of the plan; write it as decisions.mesh")
        if unit.mesh == decisions.mesh:
            raise InconsistentRequest(f"{where} is the mesh of the plan; leave it out")
        if unit.mesh.num_ranks != decisions.mesh.num_ranks:
            raise InconsistentRequest(
                f"{where} has {unit.mesh.num_ranks} ranks, but decisions.mesh has {decisions.mesh.num_ranks}; "
                "every mesh covers all ranks"
            )


def require_sound_resharding(parts: Partition, resharding: Sequence[Resharding]) -> None:
    """Partial resharding, where torch 2.13 fails or keeps the parts for good."""
    for unit, value in enumerate(resharding):
        if isinstance(value, bool):
            continue
        where = f"decisions.units[..].reshard_after_forward of {parts.units[unit].name!r}"
        other = next((name for name, _ in parts.units[unit].parameters if name in parts.dims), None)
        if other is not None:
            raise InconsistentRequest(
                f"{where}: partial resharding takes parameters that are sharded on dimension 0 alone, and "
                f"{other!r} is in decisions.shard_dims; use true or false, or shard its dimension 0"
            )
        if unit not in parts.with_backward:
            raise InconsistentRequest(
                f"{where}: the unit has no backward, which would let go of what partial resharding keeps; use true"
            )


def require_sound_repetition(decisions: Decisions, parts: Partition) -> None:
    """Knobs under which a unit that runs several times reduces more than once in a backward."""
    counted = Counter(run.unit for run in parts.passes if parts.units[run.unit].parameters)
    repeated = [unit for unit, num in counted.items() if num > 1]
    runtime = decisions.runtime
    sums = runtime.gradient_sync is GradientSync.LAST_MICRO_BATCH and decisions.num_micro_batches > 1
    recomputed = {entry.module for entry in decisions.activations if entry.policy is not ActivationPolicy.NONE}
    for run in parts.passes:
        around = [block for block in parts.blocks if block.first <= run.first and run.last <= block.last]
        if run.unit in repeated and any(block.path in recomputed for block in around):
            raise InconsistentRequest(
                f"decisions.activations: unit {parts.units[run.unit].name!r} runs several times in a forward, "
                "inside a checkpointed block with units; checkpoint the parts of the block instead"
            )
    if repeated and (sums or runtime.reduce_scatter_unused_params):
        knob = "gradient_sync" if sums else "reduce_scatter_unused_params"
        raise InconsistentRequest(
            f"decisions.runtime.{knob}: unit {parts.units[repeated[0]].name!r} runs several times in a forward, "
            "and FSDP2 would reduce it in each of its backwards; leave the module to the root unit, or the knob at "
            "its default"
        )
