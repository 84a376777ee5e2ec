"""Owners of Muon's matrices: when the search takes them, what they cost, and what is refused."""

from typing import Any

import pytest

from planner.check import check
from planner.costs import CostModel
from planner.costs.efficiency import COMPUTE_PERCENT
from planner.costs.rates import time_ns
from planner.plan import make_plan
from planner.schema import (
    ClientFeature,
    Decisions,
    DType,
    FixedChoice,
    InconsistentRequest,
    MatrixOwner,
    OptimizerGroup,
    OptimizerName,
    PlanRequest,
    RegionKind,
    SearchLimits,
)
from planner.simulate import predict
from planner.space.candidate import candidates
from tests.planner.factories import CallSpec, tiny_cluster, tiny_decisions, tiny_model, tiny_request

WITHOUT = tuple(feature for feature in ClientFeature if feature is not ClientFeature.MUON_OWNERS)
TORCHS = FixedChoice(knob="muon_owners", value=False)
ROWS, COLUMNS = 8, 16
MATRICES = tuple(f"layers.{block}.w{number}" for block in range(3) for number in range(2))


def asked(*, ranks: int = 4, **fields: Any) -> PlanRequest:
    """Three blocks of two matrices of 8 x 16; all else goes to AdamW."""
    model = tiny_model(3, block=CallSpec(shapes=((ROWS, COLUMNS),) * 2, saved=100))
    request = tiny_request(model, tiny_cluster(ranks))
    groups = (OptimizerGroup(parameters="layers.*", optimizer=OptimizerName.MUON), OptimizerGroup())
    workload = request.workload.model_copy(update={"optimizer_groups": groups})
    assert request.profile is not None
    # The optimizer's time follows from FLOPs and bytes here.
    profile = request.profile.model_copy(update={"optimizer_parameters_per_s": None})
    search = SearchLimits(gap=0.0)
    return request.model_copy(update={"workload": workload, "profile": profile, "search": search} | fields)


def owned(*ranks: int) -> tuple[MatrixOwner, ...]:
    return tuple(MatrixOwner(parameter=name, rank=rank) for name, rank in zip(MATRICES, ranks, strict=True))


SPREAD = owned(0, 1, 2, 3, 0, 1)


def decided(request: PlanRequest, *ranks: int) -> Decisions:
    return tiny_decisions(request).model_copy(update={"owners": owned(*ranks)})


def test_matrices_get_owners_balanced_over_the_ranks() -> None:
    fixed = (FixedChoice(knob="mesh.shard", value=4),)
    body = make_plan(asked(fixed=fixed)).body
    assert body.decisions is not None
    counts = [sum(entry.rank == rank for entry in body.decisions.owners) for rank in range(4)]
    assert sorted(counts) == [1, 1, 2, 2]
    assert {entry.parameter for entry in body.decisions.owners} == set(MATRICES)
    assert ClientFeature.MUON_OWNERS in body.requires.client_features
    (note,) = [note for note in body.reasons.notes if "owners" in note]
    # Two matrices on the busiest of four ranks, one and a half on average.
    assert note == (
        "Muon's 6 matrices are updated whole by their owners, in 2 rounds; "
        "the busiest rank has 33.3% more to do than the average"
    )


def test_unused_matrices_have_owners_too() -> None:
    """They get no gradient and are in no round, but the optimizer holds them, and zeros may come for them."""
    request = asked(fixed=(FixedChoice(knob="mesh.shard", value=4),))
    kinds = {
        name: kind.model_copy(update={"gradient_order": tuple(n for n in kind.gradient_order if n != "w1")})
        if name == "block"
        else kind
        for name, kind in request.model.kinds.items()
    }
    body = make_plan(request.model_copy(update={"model": request.model.model_copy(update={"kinds": kinds})})).body
    assert body.decisions is not None
    assert {entry.parameter for entry in body.decisions.owners} == set(MATRICES)


@pytest.mark.parametrize("fields", [{"client_features": WITHOUT}, {"fixed": (TORCHS,)}], ids=["client", "fixed"])
def test_torchs_muon_is_left_where_owners_are_not_allowed(fields: dict[str, Any]) -> None:
    body = make_plan(asked(**fields)).body
    assert body.decisions is not None
    assert body.decisions.owners == ()
    assert ClientFeature.MUON_OWNERS not in body.requires.client_features


def test_owners_that_are_fixed_but_not_possible_leave_nothing() -> None:
    fixed = (FixedChoice(knob="muon_owners", value=True), FixedChoice(knob="mesh.shard", value=4))
    with pytest.raises(InconsistentRequest, match=r"muon_owners: .*'muon_owners'"):
        make_plan(asked(client_features=WITHOUT, fixed=fixed))


def test_a_value_that_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(
        InconsistentRequest, match="muon_owners: the fixed value is not possible; it is true or false"
    ):
        make_plan(asked(fixed=(FixedChoice(knob="muon_owners", value="maybe"),)))


def test_one_shard_needs_no_owners() -> None:
    body = make_plan(asked(fixed=(FixedChoice(knob="mesh.shard", value=1),))).body
    assert body.decisions is not None
    assert body.decisions.owners == ()


def test_owners_allow_more_ranks_than_a_matrix_has_rows() -> None:
    meshes = {candidate.mesh.shard for candidate in candidates(asked(ranks=16), on_host=False)}
    torchs = {candidate.mesh.shard for candidate in candidates(asked(ranks=16, fixed=(TORCHS,)), on_host=False)}
    assert meshes == {1, 2, 4, 8, 16}
    assert torchs == {1, 2, 4, 8}
    with pytest.raises(InconsistentRequest, match="8 rows; give matrices owners"):
        predict(asked(ranks=16), tiny_decisions(asked(ranks=16)))


def test_a_round_takes_the_iteration_of_one_matrix_and_two_exchanges_of_it() -> None:
    """Six matrices of one owner are six rounds; of owners 0, 1, 2, 3, 0, 1 two."""
    request = asked()
    one, spread = (
        predict(request, decided(request, *ranks)).breakdown.optimizer_ns
        for ranks in ((0,) * 6, (0, 1, 2, 3, 0, 1))
    )
    flops = 5 * 2 * ROWS * ROWS * (2 * COLUMNS + ROWS)
    exchange_ns = CostModel.of_plan(request, tiny_decisions(request)).own.all_gather_ns(ROWS * COLUMNS * 2)
    device = request.cluster.node_groups[0].device
    assert not isinstance(device, str)
    rate = device.flops_per_s[DType.BFLOAT16]
    iterations_ns = [time_ns(num * flops, rate, percent=COMPUTE_PERCENT[RegionKind.MATMUL]) for num in (6, 2)]
    assert one - spread == 4 * 2 * exchange_ns + iterations_ns[0] - iterations_ns[1]


def test_an_owner_needs_room_for_its_largest_matrix() -> None:
    """Pieces, the matrix as gathered, two iterates and two Gram matrices, in bfloat16."""
    request = asked()
    few = predict(request, decided(request, 0, 1, 2, 3, 0, 1)).peak.optimizer_step_bytes
    more = predict(request, decided(request, 0, 0, 0, 0, 0, 0)).peak.optimizer_step_bytes
    piece = ROWS * COLUMNS // 4 * 2
    # A round of four matrices holds pieces of four of them, a round of one a piece of one.
    assert few - more == 3 * piece


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        (owned(0, 1, 2, 3, 0, 4), "rank 4, but there are 4 shards"),
        (SPREAD[:5], "'layers.2.w1' has no owner"),
        ((*owned(0, 1, 2, 3, 0, 1), MatrixOwner(parameter="layers.0.w0", rank=1)), "'layers.0.w0' is listed twice"),
        (
            (*owned(0, 1, 2, 3, 0, 1), MatrixOwner(parameter="head.w0", rank=1)),
            "'head.w0' is no matrix of a Muon group",
        ),
    ],
    ids=["rank", "missing", "twice", "adamw"],
)
def test_owners_that_do_not_fit_are_refused(owners: tuple[MatrixOwner, ...], words: str) -> None:
    request = asked()
    decisions = tiny_decisions(request).model_copy(update={"owners": owners})
    with pytest.raises(InconsistentRequest, match=words):
        predict(request, decisions)
    sound = decided(request, 0, 1, 2, 3, 0, 1)
    body = make_plan(request).body.model_copy(update={"decisions": sound, "predictions": predict(request, sound)})
    assert not any("owner" in problem for problem in check(request, body).problems)
    assert any(
        "owners:" in problem
        for problem in check(request, body.model_copy(update={"decisions": decisions})).problems
    )
