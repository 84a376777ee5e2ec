"""Gathers in place: which units can be gathered so, and whether those of a plan are.

[Note: in place or copied out]
Nothing is copied out of a gather in place, and there is no second buffer. But in forward such a gather waits until
the unit two before is done with its parameters, and FSDP2's own until the unit three before is. Neither is always
faster, so plans with and without are both tried: all units that can be, or none.

Units that run several times are left out. Whether they are gathered again in forward, and so which gather frees
what others let go of, would depend on what else is decided.
"""

from collections import Counter
from collections.abc import Sequence

from planner.program.ragged import may_alias
from planner.program.units import Partition
from planner.schema import ClientFeature, MeshPlan, PlanRequest
from planner.space.fixed import allowed, allows

ALIAS_GATHERS = "alias_gathers"
NO_ALIASES = (
    "alias_gathers: the fixed value is not possible; it is true or false, and true needs the client feature "
    f"{ClientFeature.ALIAS_GATHERS.value!r}"
)


def aliasable(parts: Partition, meshes: Sequence[MeshPlan]) -> tuple[bool, ...]:
    """Per unit, whether the search may gather it in place."""
    runs = Counter(run.unit for run in parts.passes)
    return tuple(may_alias(parts, unit, mesh.shard) and runs[unit] < 2 for unit, mesh in enumerate(meshes))


def alias_choices(request: PlanRequest, units: Sequence[bool]) -> list[bool]:
    """Whether the units that can be are gathered in place, as client and fixed choices allow.

    Args:
        request: what to plan.
        units: `aliasable` units; where there are none, there is nothing to choose.
    """
    if not any(units):
        return [False]
    values = (False, True) if allows(request, ClientFeature.ALIAS_GATHERS) else (False,)
    return [value for value in values if allowed(request, {ALIAS_GATHERS: value})]
