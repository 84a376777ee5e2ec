"""Units of a plan, folded: equal decisions on repeated blocks become one row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.block_names import fold_families, template
from planner.schema import ActivationPlan, ActivationPolicy, Decisions, MeshPlan, UnitPlan
from planner.schema.module_paths import modules_above


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTraits:
    """What one row says about its units; equal traits fold."""

    family: tuple[str, ...]
    """Modules with the block index replaced by `*`."""
    width: int
    """Modules per unit."""
    reshard: str
    activations: str
    prefetch: str
    tiers: str
    mesh: str
    """Where it is not that of the plan."""
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRow:
    """Units with the same traits."""

    name: str
    num_units: int
    num_parameters: int
    """Elements gathered by one of the units, the largest."""
    traits: UnitTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One decision along a family of blocks, in order: a character per unit."""

    name: str
    decision: str
    marks: tuple[bool, ...]
    """Where it holds."""


def fold_units(decisions: Decisions) -> tuple[UnitRow, ...]:
    """Rows in the order of the first unit of each."""
    grouped: dict[UnitTraits, list[UnitPlan]] = {}
    for traits, unit in zip(unit_traits(decisions), decisions.units, strict=True):
        grouped.setdefault(traits, []).append(unit)
    return tuple(
        UnitRow(
            name=_row_name(traits, units),
            num_units=len(units),
            num_parameters=max(unit.num_parameters for unit in units),
            traits=traits,
        )
        for traits, units in grouped.items()
    )


def decision_strips(decisions: Decisions) -> tuple[Strip, ...]:
    """A strip for each family of blocks and each yes-or-no decision that is not the same everywhere."""
    families: dict[tuple[str, ...], list[tuple[UnitTraits, UnitPlan]]] = {}
    for traits, unit in zip(unit_traits(decisions), decisions.units, strict=True):
        if "*" in "".join(traits.family):
            families.setdefault(traits.family, []).append((traits, unit))
    aspects: tuple[tuple[str, Callable[[UnitTraits], bool]], ...] = (
        ("checkpoint", lambda traits: "checkpoint" in traits.activations),
        ("selective", lambda traits: "selective" in traits.activations),
        ("offload", lambda traits: "offload" in traits.activations),
        ("reshard", lambda traits: not traits.reshard.startswith("keep")),
    )
    strips = []
    for members in families.values():
        name = _modules_name([unit for _, unit in members])
        for decision, holds in aspects:
            marks = tuple(holds(traits) for traits, _ in members)
            if len(set(marks)) > 1:
                strips.append(Strip(name=name, decision=decision, marks=marks))
    return tuple(strips)


def unit_traits(decisions: Decisions) -> list[UnitTraits]:
    """Traits of each unit, in the order of the plan."""
    prefetch = _prefetch_words(decisions.units)
    policies = _Policies(decisions.activations)
    return [
        UnitTraits(
            family=tuple(dict.fromkeys(template(path) for path in unit.modules)),
            width=len(unit.modules),
            reshard=reshard_words(unit),
            activations=policies.words(unit),
            prefetch=prefetch[index],
            tiers=_tier_words(unit),
            mesh=mesh_words(unit.mesh) if unit.mesh else "",
            layout="ragged, in place" if unit.alias_gathers else "ragged" if unit.layouts else "even",
        )
        for index, unit in enumerate(decisions.units)
    ]


def mesh_words(mesh: MeshPlan) -> str:
    """How parameters are spread over the ranks."""
    shards = f"{mesh.shard}-way shard"
    return shards if mesh.replicate == 1 else f"{mesh.replicate} replicas x {shards}"


def reshard_words(unit: UnitPlan) -> str:
    """What happens to the gathered parameters after forward, and after backward where they stay."""
    kept = "" if unit.reshard_after_backward else ", keep after backward"
    match unit.reshard_after_forward:
        case None:
            return ("keep" if unit.modules == ("",) else "reshard") + kept
        case True:
            return f"reshard{kept}"
        case False:
            return f"keep{kept}"
        case degree:
            return f"reshard to {degree}{kept}"


def _row_name(traits: UnitTraits, units: list[UnitPlan]) -> str:
    name = _modules_name(units)
    return f"{name} ({traits.width} per unit)" if traits.width > 1 and "*" in "".join(traits.family) else name


def _modules_name(units: list[UnitPlan]) -> str:
    return " + ".join(fold_families(path for unit in units for path in unit.modules))


class _Policies:
    """What happens to activations, by path: deep models have thousands of units and of decisions about them."""

    def __init__(self, activations: Sequence[ActivationPlan]) -> None:
        self._at: dict[str, set[str]] = {}
        self._below: dict[str, set[str]] = {}
        for plan in activations:
            word = _POLICY_WORDS[plan.policy]
            self._at.setdefault(plan.module, set()).add(word)
            for around in modules_above(plan.module):
                self._below.setdefault(around, set()).add(word)

    def words(self, unit: UnitPlan) -> str:
        """Policies of the modules of a unit, of those around them and of those inside."""
        found: set[str] = set()
        for path in filter(None, unit.modules):
            found |= self._below.get(path, set())
            for module in (path, *filter(None, modules_above(path))):
                found |= self._at.get(module, set())
        return " + ".join(sorted(found)) or "keep"


_POLICY_WORDS = {
    ActivationPolicy.NONE: "keep",
    ActivationPolicy.FULL: "checkpoint",
    ActivationPolicy.SELECTIVE: "selective",
    ActivationPolicy.OFFLOAD: "offload",
}


def _prefetch_words(units: Sequence[UnitPlan]) -> list[str]:
    forward = _depths([len(unit.forward_prefetch) for unit in units])
    backward = _depths([len(unit.backward_prefetch) for unit in reversed(units)])[::-1]
    return [_depth_words(ahead, behind) for ahead, behind in zip(forward, backward, strict=True)]


def _depths(lengths: list[int]) -> list[int]:
    """Depth of each unit; lists that are shorter because the model ends count as the full depth."""
    last = max((index for index, length in enumerate(lengths) if length), default=-1)
    depths, previous = [], 0
    for index, length in enumerate(lengths):
        left = last + 1 - index
        cut = last >= 0 and 0 <= left < previous and length == left
        previous = previous if cut else length
        depths.append(previous)
    return depths


def _depth_words(forward: int, backward: int) -> str:
    if forward == backward:
        return f"{forward} ahead" if forward else "implicit"
    directions = ((forward, "forward"), (backward, "backward"))
    return ", ".join(f"{depth} {direction}" for depth, direction in directions if depth)


def _tier_words(unit: UnitPlan) -> str:
    if unit.parameter_tier == unit.optimizer_tier:
        return str(unit.parameter_tier)
    return f"parameters {unit.parameter_tier}, optimizer {unit.optimizer_tier}"
