"""Even shards or ragged layouts: where the search plans buffers, and what it keeps whole."""

from typing import Any

import pytest

from benchmarks.search_requests import random_request
from planner.check import check
from planner.check.rules.atoms import atom_problems
from planner.plan import make_plan
from planner.refuse import refuse_unsupported
from planner.schema import (
    AtomRule,
    ClientFeature,
    FixedChoice,
    FlatAtom,
    InconsistentRequest,
    MemoryCategory,
    Objective,
    OptimizerName,
    Plan,
    PlanRequest,
    Quantizer,
    QuantizerGroup,
    RowsAtom,
    SearchLimits,
    TileAtom,
    WholeAtom,
)
from planner.simulate import predict
from planner.space.candidate import candidates
from planner.space.layouts import Cut
from tests.planner.factories import CallSpec, tiny_cluster, tiny_decisions, tiny_model, tiny_request

UNEVEN = (5, 64)
"""Rows that four ranks pad to eight: 512 elements instead of 320."""
SHARDED = (FixedChoice(knob="mesh.shard", value=4),)
WITHOUT = tuple(feature for feature in ClientFeature if feature is not ClientFeature.RAGGED_LAYOUT)


def asked(*shapes: tuple[int, ...], atoms: tuple[AtomRule, ...] = (), **fields: Any) -> PlanRequest:
    model = tiny_model(2, block=CallSpec(shapes=shapes, saved=100))
    optimizer = fields.pop("optimizer", OptimizerName.ADAMW)
    request = tiny_request(model, tiny_cluster(4), optimizer=optimizer)
    workload = request.workload.model_copy(update={"atoms": atoms})
    search = SearchLimits(gap=0.0)
    return request.model_copy(update={"workload": workload, "fixed": SHARDED, "search": search} | fields)


def planned(request: PlanRequest) -> Plan:
    plan = make_plan(request)
    assert plan.body.outcome == "feasible"
    assert check(request, plan.body).passed
    return plan


def shards(plan: Plan) -> dict[str, list[int]]:
    """Shard elements of the layouts of each ragged unit."""
    assert plan.body.decisions is not None
    sizes = {layout.name: layout.shard_elements for layout in plan.body.decisions.layouts}
    return {
        unit.modules[0]: [sizes[name] for name in unit.layouts]
        for unit in plan.body.decisions.units
        if unit.layouts
    }


def rule(atom: Any, parameters: str = "layers.*") -> AtomRule:
    return AtomRule(parameters=parameters, atom=atom)


def test_units_that_even_shards_would_pad_are_ragged() -> None:
    request = asked(UNEVEN)
    plan = planned(request)
    found = shards(plan)
    assert {name: sizes for name, sizes in found.items() if name.startswith("layers.")} != {}
    for name, sizes in found.items():
        if name.startswith("layers."):
            assert sizes in ([80], [160])  # one block of 320 elements, or two, over four ranks
    assert ClientFeature.RAGGED_LAYOUT in plan.body.requires.client_features
    assert any("ragged layouts, which pad 0.00%" in note for note in plan.body.reasons.notes)
    even = planned(request.model_copy(update={"client_features": WITHOUT}))
    assert not shards(even)
    assert plan.body.predictions is not None
    assert even.body.predictions is not None
    assert plan.body.predictions.peak.reserved_bytes < even.body.predictions.peak.reserved_bytes


def test_blocks_of_a_quantizer_are_kept_whole() -> None:
    """Rows of 48 elements: blocks of 32 end within them, so that an even cut of 3 rows goes through one."""
    request = asked((12, 48))
    assert not shards(planned(request))
    groups = (QuantizerGroup(quantizer=Quantizer.MX),)
    workload = request.workload.model_copy(update={"quantizer_groups": groups})
    quantized = request.model_copy(update={"workload": workload})
    found = shards(planned(quantized))
    assert all(size % 32 == 0 for name, sizes in found.items() if name.startswith("layers.") for size in sizes)
    assert any(name.startswith("layers.") for name in found)
    even = planned(request).body.decisions
    assert even is not None
    problems = list(atom_problems(quantized, even))
    assert any("ends inside its atom of 32 elements" in problem for problem in problems)


def test_layouts_can_be_fixed_to_even() -> None:
    even = asked(UNEVEN, fixed=(*SHARDED, FixedChoice(knob="layouts", value="even")))
    assert not shards(planned(even))
    other = asked(UNEVEN, fixed=(*SHARDED, FixedChoice(knob="layouts", value="odd")))
    with pytest.raises(InconsistentRequest, match="'layouts' may be 'ragged' or 'even'"):
        make_plan(other)


def in_place(plan: Plan) -> list[str]:
    assert plan.body.decisions is not None
    return [unit.modules[0] for unit in plan.body.decisions.units if unit.alias_gathers]


def test_ragged_units_are_gathered_in_place_where_that_is_better() -> None:
    """Here for memory; where nothing is gained they are not."""
    assert not in_place(planned(asked(UNEVEN)))
    plan = planned(asked(UNEVEN, objective=Objective.PEAK_MEMORY))
    assert any(name.startswith("layers.") for name in in_place(plan))
    assert ClientFeature.ALIAS_GATHERS in plan.body.requires.client_features
    assert any("are gathered in place" in note for note in plan.body.reasons.notes)
    fixed = (*SHARDED, FixedChoice(knob="alias_gathers", value=False))
    copied = planned(asked(UNEVEN, objective=Objective.PEAK_MEMORY, fixed=fixed))
    assert not in_place(copied)
    assert plan.body.predictions is not None
    assert copied.body.predictions is not None
    assert plan.body.predictions.peak.reserved_bytes < copied.body.predictions.peak.reserved_bytes


def test_a_client_that_cannot_gather_in_place_gets_no_such_plan() -> None:
    features = tuple(feature for feature in ClientFeature if feature is not ClientFeature.ALIAS_GATHERS)
    plan = planned(asked(UNEVEN, client_features=features))
    assert shards(plan)
    assert not in_place(plan)
    fixed = (*SHARDED, *(FixedChoice(knob=k, value=v) for k, v in (("layouts", "ragged"), ("alias_gathers", True))))
    assert in_place(planned(asked(UNEVEN, fixed=fixed)))
    with pytest.raises(InconsistentRequest, match="alias_gathers: the fixed value is not possible"):
        make_plan(asked(UNEVEN, fixed=fixed, client_features=features))


def test_what_divides_stays_even() -> None:
    assert not shards(planned(asked((8, 64))))
    ragged = asked((8, 64), fixed=(*SHARDED, FixedChoice(knob="layouts", value="ragged")))
    assert not shards(planned(ragged))


def test_one_percent_is_what_a_layout_has_to_save() -> None:
    """403 rows on four ranks are padded to 404, 0.25 %; 41 to 44, 7 %."""
    assert not shards(planned(asked((403, 8))))
    assert shards(planned(asked((41, 64))))


def test_a_declared_atom_makes_a_unit_ragged() -> None:
    """Four ranks cut eight rows two by two; atoms of four rows of 64 elements need shards of 256."""
    plan = planned(asked((8, 64), (8, 64), atoms=(rule(RowsAtom(num_rows=4)),)))
    found = {name: sizes for name, sizes in shards(plan).items() if name.startswith("layers.")}
    assert set(map(tuple, found.values())) <= {(256,), (512,)}
    assert found


def test_an_atom_that_even_shards_keep_changes_nothing() -> None:
    assert not shards(planned(asked((8, 64), atoms=(rule(RowsAtom(num_rows=2)),))))


def test_an_atom_of_the_description_counts_too() -> None:
    request = asked((8, 64), (8, 64))
    sets = {
        key: tuple(
            parameter.model_copy(update={"atom": WholeAtom()}) if parameter.shape == (8, 64) else parameter
            for parameter in parameters
        )
        for key, parameters in request.model.parameter_sets.items()
    }
    model = request.model.model_copy(update={"parameter_sets": sets})
    plan = planned(request.model_copy(update={"model": model}))
    assert any(name.startswith("layers.") for name in shards(plan))


@pytest.mark.parametrize(
    "fields",
    [{"client_features": WITHOUT}, {"fixed": (*SHARDED, FixedChoice(knob="layouts", value="even"))}],
    ids=["client", "fixed"],
)
def test_an_atom_that_would_be_cut_is_refused_where_layouts_are_not_allowed(fields: dict[str, Any]) -> None:
    request = asked((8, 64), atoms=(rule(RowsAtom(num_rows=4)),), **fields)
    with pytest.raises(InconsistentRequest, match=r"even shards cut the atom of 'layers.0.w0'.*'ragged_layout'"):
        make_plan(request)


def test_an_atom_without_parameters_is_refused() -> None:
    with pytest.raises(InconsistentRequest, match=r"workload.atoms\[0\]: 'blocks.*' matches no parameter"):
        refuse_unsupported(asked((8, 64), atoms=(rule(WholeAtom(), "blocks.*"),)))


@pytest.mark.parametrize(
    ("atom", "is_cut"),
    [
        (RowsAtom(num_rows=2), False),
        (RowsAtom(num_rows=4), True),
        (FlatAtom(num_elements=128), False),
        (FlatAtom(num_elements=256), True),
        (TileAtom(num_rows=2, num_columns=2), False),
        (TileAtom(num_rows=8, num_columns=1), True),
        (WholeAtom(), True),
    ],
    ids=str,
)
def test_the_checker_finds_even_shards_that_cut_atoms(atom: Any, is_cut: bool) -> None:
    """Eight rows of 64 elements on four ranks: shards of two rows."""
    request = asked((8, 64), atoms=(rule(atom),))
    body = planned(asked((8, 64))).body
    decisions = tiny_decisions(request)
    predictions = predict(request, decisions)
    report = check(request, body.model_copy(update={"decisions": decisions, "predictions": predictions}))
    found = [problem for problem in report.problems if "ends inside its atom" in problem]
    assert len(found) == (2 if is_cut else 0)


def test_the_checker_finds_a_layout_that_cuts_an_atom() -> None:
    request = asked(UNEVEN)
    body = planned(request).body
    wide = request.model_copy(
        update={"workload": request.workload.model_copy(update={"atoms": (rule(FlatAtom(num_elements=64)),)})}
    )
    report = check(wide, body)
    assert any("ends inside its atom of 64 elements" in problem for problem in report.problems)


def test_state_in_eight_bits_is_kept() -> None:
    """16,384 elements on eight ranks are 2,048 each, too few for 8 bits; eight of them in a buffer stay whole."""
    shapes = tuple((64, 256) for _ in range(8))
    model = tiny_model(1, block=CallSpec(shapes=shapes, saved=100))
    request = tiny_request(model, tiny_cluster(8), optimizer=OptimizerName.ADAMW_8BIT).model_copy(
        update={"fixed": (FixedChoice(knob="mesh.shard", value=8),), "search": SearchLimits(gap=0.0)}
    )
    ragged = planned(request)
    even = planned(request.model_copy(update={"client_features": WITHOUT}))
    assert shards(ragged)["layers.0"] == [16384]
    notes = [next(note for note in plan.body.reasons.notes if "float32 moments" in note) for plan in (even, ragged)]
    # Embedding, norm and head are too small for 8 bits in any case.
    assert [note.partition(" ")[0] for note in notes] == ["11", "3"]
    assert ragged.body.predictions is not None
    assert even.body.predictions is not None
    # 16,384 elements a rank: two bytes and two scales for each 256 instead of eight bytes.
    saved = 16384 * 8 - 2 * (16384 + 64 * 4)
    states = [
        plan.predictions.peak.by_category_bytes[MemoryCategory.OPTIMIZER]
        for plan in (even.body, ragged.body)
        if plan.predictions
    ]
    assert states[0] - states[1] == saved


def test_even_cuts_are_tried_beside_layouts_that_gather_more() -> None:
    """70 blocks of 4,096 elements on four ranks: two are padding, so gathers grow while state shrinks."""
    model = tiny_model(1, block=CallSpec(shapes=((32, 256),) * 35, saved=100))
    request = tiny_request(model, tiny_cluster(4), optimizer=OptimizerName.ADAMW_8BIT)
    found = {candidate.cut for candidate in candidates(request, on_host=False)}
    assert {Cut.EVEN, Cut.RAGGED} <= found


@pytest.mark.parametrize("seed", range(200, 230))
def test_even_cuts_are_never_better_where_they_are_not_tried(seed: int) -> None:
    """Time, with all else fixed to what the plan with layouts decided about the mesh."""
    request = random_request(seed)
    found = list(candidates(request, on_host=False))
    if not any(candidate.cut is Cut.RAGGED for candidate in found):
        return
    plan = make_plan(request)
    even = make_plan(request.model_copy(update={"fixed": (FixedChoice(knob="layouts", value="even"),)}))
    assert plan.body.predictions is not None
    assert even.body.predictions is not None
    assert plan.body.predictions.step_time_ns <= even.body.predictions.step_time_ns
