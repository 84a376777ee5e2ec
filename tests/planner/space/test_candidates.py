"""Units on the host: families of sets of units, and the choices that a person fixes of them."""

from pathlib import Path
from random import Random

import pytest

from benchmarks.search_requests import random_request
from planner.program.units import Partition, partition
from planner.schema import FixedChoice, InconsistentRequest, ModelDescription, PlanRequest
from planner.search import search
from planner.space.candidate import candidates
from planner.space.offload import MAX_EACH, Class, Moved, Offload, offloads
from planner.space.regions import regions

EXAMPLES = Path(__file__).parents[3] / "examples" / "models"


def request_of(seed: int, **update: object) -> PlanRequest:
    """A random one whose hosts have memory."""
    request = random_request(seed)
    groups = tuple(one.model_copy(update={"host_memory_bytes": 2**40}) for one in request.cluster.node_groups)
    cluster = request.cluster.model_copy(update={"node_groups": groups})
    return request.model_copy(update={"client_features": None, "cluster": cluster, **update})


def families(request: PlanRequest) -> list[tuple[Partition, Offload]]:
    """Of each grouping."""
    found = {
        (id(one.partition), one.offload.moved): (one.partition, one.offload)
        for one in candidates(request, on_host=True)
        if not one.activation_offload
    }
    return list(found.values())


def sets_of(family: Offload) -> list[frozenset[int]]:
    """Every one."""
    if family.is_one:
        return [family.most]
    return [units for half in family.halves() for units in sets_of(half)]


@pytest.mark.parametrize("seed", range(12))
def test_every_set_of_few_units_is_in_their_family_once(seed: int) -> None:
    few = [(parts, family) for parts, family in families(request_of(seed)) if len(parts.units) <= MAX_EACH]
    for parts, family in few:
        units = [unit for unit, one in enumerate(parts.units) if one.parameters]
        found = sets_of(family)
        assert family.num_sets == len(found) == len(set(found)) == 2 ** len(units) - 1
        assert family.most == frozenset(units)


def test_any_number_of_alike_units_is_spread_evenly() -> None:
    """Later ones first: of 12 blocks 3 are every fourth, 6 every second."""
    model = ModelDescription.from_json((EXAMPLES / "gpt-2.json").read_bytes())
    parts = partition(model, [(f"transformer.h.{block}",) for block in range(12)])
    request = request_of(1).model_copy(update={"model": model, "fixed": ()})
    family = offloads(request, parts, Moved.UNITS)
    assert family is not None
    blocks = next(one for one in family.classes if len(one.order) == 12)
    assert sorted(blocks.order[:3]) == [4, 8, 12]
    assert sorted(blocks.order[:6]) == [2, 4, 6, 8, 10, 12]
    assert family.num_sets == 13 * 2 - 1
    freed = [
        sum(p.num_elements for unit in one.most for _, p in parts.units[unit].parameters)
        for one in family.samples()
    ]
    assert freed == sorted(freed, reverse=True)


@pytest.mark.parametrize("seed", range(12))
def test_the_fewest_units_come_first(seed: int) -> None:
    """Sets of the family that have some unit, each with more than the one before; none where units are few."""
    families = [region for region in regions(request_of(seed), on_host=True) if region.is_family]
    for region in Random(seed).sample(families, min(6, len(families))):
        family = region.candidate.offload
        found = [one.candidate.offload for one in region.least_off()]
        assert all(one.is_one and one.most and family.least <= one.most <= family.most for one in found)
        assert [len(one.most) for one in found] == sorted(len(one.most) for one in found)


def test_units_are_kept_where_a_person_wants_them() -> None:
    """By the unit, by patterns, all of them; what contradicts itself is refused."""
    choices = {
        "layers.0*.offload": FixedChoice(knob="layers.0*.offload", value=True),
        "root": FixedChoice(knob="root.offload", value=False),
        "all": FixedChoice(knob="offload", value="all"),
        "none": FixedChoice(knob="*.offload", value=False),
        "third": FixedChoice(knob="offload", value="third"),
    }
    for parts, family in families(request_of(1, fixed=(choices["layers.0*.offload"], choices["root"]))):
        first = [unit for unit, one in enumerate(parts.units) if one.modules[0].startswith("layers.0")]
        assert first
        assert set(first) <= family.least
        assert 0 not in family.most
    assert all(family.is_one for _, family in families(request_of(1, fixed=(choices["all"],))))
    for wrong in (choices["third"],), (choices["all"], choices["none"]):
        with pytest.raises(InconsistentRequest):
            search(request_of(1, fixed=wrong))


def test_state_goes_to_drives_where_there_are_some() -> None:
    request = request_of(1)
    groups = tuple(one.model_copy(update={"nvme_bytes": 2**44}) for one in request.cluster.node_groups)
    drives = request.model_copy(update={"cluster": request.cluster.model_copy(update={"node_groups": groups})})
    assert {family.moved for _, family in families(request)} == {Moved.UNITS, Moved.STATE_TO_HOST}
    assert {family.moved for _, family in families(drives)} == set(Moved)


@pytest.mark.parametrize("chosen", ["host", "host:all"])
def test_what_becomes_of_optimizer_state_can_be_fixed(chosen: str) -> None:
    fixed = (
        FixedChoice(knob="optimizer_offload", value=chosen),
        FixedChoice(knob="layers.0*.optimizer_offload", value="host"),
    )
    found = families(request_of(1, fixed=fixed))
    assert found
    for parts, family in found:
        assert family.moved is Moved.STATE_TO_HOST
        assert family.is_one == (chosen == "host:all")
        first = {unit for unit, one in enumerate(parts.units) if one.modules[0].startswith("layers.0")}
        assert first <= family.least


def test_state_can_stay_where_its_parameters_are() -> None:
    request = request_of(1, fixed=(FixedChoice(knob="optimizer_offload", value="none"),))
    assert {family.moved for _, family in families(request)} == {Moved.UNITS}


def test_units_without_elements_are_split_too() -> None:
    """Where only they are undecided."""
    empty, full = Class(order=(1, 2), weight=0), Class(order=(3,), weight=7)
    family = Offload((full, empty), ((1, 1), (0, 2)))
    assert len(sets_of(family)) == len(set(sets_of(family))) == family.num_sets == 3


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"root.offload": 1}, r"fixed\[0\]: root.offload = 1 leaves no plan: root.offload may be true or false"),
        ({"optimizer_offload": "tape"}, r"fixed\[0\]: .* may be none, host, host:all, nvme or nvme:all"),
        ({"*.optimizer_offload": "host"}, r"with Adam or AdamW alone, in the type"),
        ({"optimizer_offload": "nvme"}, r"the cluster has no drives \(node_groups.nvme_bytes\)"),
        (
            {"root.offload": True, "forward_prefetch": 0, "*.offload": False},
            r"fixed\[2\]: \*\.offload = False leaves no plan together with fixed\[0\]: root\.offload = True;",
        ),
        ({"rot.offload": True}, r"'rot.offload' matches no knob, the nearest is 'root.offload'; use one of"),
    ],
)
def test_choices_that_leave_no_plan_are_named(fixed: dict[str, bool | int | str], message: str) -> None:
    request = request_of(3, fixed=tuple(FixedChoice(knob=knob, value=value) for knob, value in fixed.items()))
    with pytest.raises(InconsistentRequest, match=message):
        search(request)
