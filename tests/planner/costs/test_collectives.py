import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.collectives import AlphaBeta, MeasuredCurve, NoTransfer, collective_curve
from planner.costs.topology import Group
from planner.schema import (
    CollectiveMeasurement,
    CurvePoint,
    InconsistentRequest,
    LinkSheet,
    NumberSource,
    Profile,
    Quantiles,
)

FAST = LinkSheet(name="fast", bytes_per_s=100_000_000_000, latency_ns=1_000)
SLOW = LinkSheet(name="slow", bytes_per_s=10_000_000_000, latency_ns=5_000)
PAIR = Group(num_ranks=2, num_nodes=1, intra=FAST, inter=None)
NODE = Group(num_ranks=8, num_nodes=1, intra=FAST, inter=None)
NODES = Group(num_ranks=32, num_nodes=4, intra=FAST, inter=SLOW)
UNEVEN = Group(num_ranks=12, num_nodes=2, intra=FAST, inter=SLOW, is_even=False)
ACROSS = Group(num_ranks=4, num_nodes=4, intra=FAST, inter=SLOW)
GROUPS = (PAIR, NODE, NODES, UNEVEN, ACROSS)


def measured(group, *points, collective="all_gather"):
    return CollectiveMeasurement(
        collective=collective,
        num_ranks=group.num_ranks,
        num_nodes=group.num_nodes,
        points=tuple(CurvePoint(size_bytes=size, duration_ns=duration) for size, duration in points),
    )


@pytest.mark.parametrize(
    ("group", "expected_ns"),
    [
        # 80 % of 100 GB/s is 80 bytes per ns: 1 us + 80e6 / 2 / 80.
        (PAIR, 1_000 + 500_000),
        # 7 us + 80e6 * 7/8 / 80.
        (NODE, 7_000 + 875_000),
        # Between nodes 80e6 / 8 * 3/4 / 8 bytes per ns = 937,500; inside 80e6 * 7/8 / 80 = 875,000; both latencies.
        (NODES, 3 * 5_000 + 7 * 1_000 + 937_500),
        # One ring over the slow link: 11 steps and 80e6 * 11/12 / 8.
        (UNEVEN, 11 * 5_000 + 9_166_667),
        # One rank on each node: the slow ring alone.
        (ACROSS, 3 * 5_000 + 7_500_000),
    ],
)
def test_alpha_beta_by_hand(group, expected_ns):
    assert collective_curve("all_gather", group, None).time_ns(80_000_000) == expected_ns
    assert collective_curve("reduce_scatter", group, None).time_ns(80_000_000) == expected_ns
    assert collective_curve("all_reduce", group, None).time_ns(80_000_000) == 2 * expected_ns


def test_a_small_model_on_20_gb_links():
    # 1.2e9 parameters gathered in bf16 over 4 ranks: 3/4 of 2.4e9 bytes at 80 % of 20 GB/s.
    link = LinkSheet(name="link", bytes_per_s=20_000_000_000, latency_ns=0)
    group = Group(num_ranks=4, num_nodes=1, intra=link, inter=None)
    assert collective_curve("all_gather", group, None).time_ns(2_400_000_000) == 112_500_000


def test_one_rank_sends_nothing():
    alone = Group(num_ranks=1, num_nodes=1, intra=FAST, inter=None)
    curve = collective_curve("all_gather", alone, Profile(collectives=(measured(alone, (1, 1)),)))
    assert isinstance(curve, NoTransfer)
    assert curve.time_ns(10**12) == 0
    assert curve.sources("all_gather") == ()


@given(group=st.sampled_from(GROUPS), sizes=st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)))
def test_alpha_beta_never_falls_with_the_size(group, sizes):
    small, large = sorted(sizes)
    curve = AlphaBeta.of(group, passes=1)
    assert curve.time_ns(small) <= curve.time_ns(large)
    assert curve.time_ns(0) == 0


@given(size=st.integers(1, 2**40), factor=st.integers(2, 10))
def test_a_faster_link_never_costs_more(size, factor):
    faster = SLOW.model_copy(update={"bytes_per_s": SLOW.bytes_per_s * factor})
    upgraded = Group(num_ranks=32, num_nodes=4, intra=FAST, inter=faster)
    assert AlphaBeta.of(upgraded, passes=1).time_ns(size) <= AlphaBeta.of(NODES, passes=1).time_ns(size)


POINTS = st.dictionaries(st.integers(0, 2**30), st.integers(1, 2**40), min_size=1, max_size=6).filter(
    lambda points: max(points) > 0
)


@given(points=POINTS, sizes=st.tuples(st.integers(0, 2**34), st.integers(0, 2**34)))
def test_measured_curves_never_fall_and_never_undercut_a_point(points, sizes):
    curve = MeasuredCurve.of(
        [CurvePoint(size_bytes=size, duration_ns=duration) for size, duration in points.items()], path="p"
    )
    small, large = sorted(sizes)
    assert curve.time_ns(small) <= curve.time_ns(large)
    for size, duration in points.items():
        if size:
            assert curve.time_ns(size) >= duration


def test_measured_points_replace_alpha_beta():
    profile = Profile(collectives=(measured(NODE, (4_000, 90), (1_000, 30), (2_000, 50)),))
    curve = collective_curve("all_gather", NODE, profile)
    assert curve.time_ns(0) == 0
    assert curve.time_ns(1) == 30
    assert curve.time_ns(1_000) == 30
    assert curve.time_ns(1_500) == 40
    assert curve.time_ns(2_001) == 51
    assert curve.time_ns(4_000) == 90
    assert curve.time_ns(40_000) == 900
    (rate,) = curve.sources("all_gather")
    assert (rate.source, rate.value, rate.unit) == (NumberSource.MEASURED, 4_000 * 10**9 // 90, "bytes_per_s")


def test_noise_is_flattened():
    curve = collective_curve("all_gather", NODE, Profile(collectives=(measured(NODE, (1_000, 50), (2_000, 40)),)))
    assert [curve.time_ns(size) for size in (1_000, 1_500, 2_000, 4_000)] == [50, 50, 50, 100]


def test_two_curves_of_one_group_are_one():
    profile = Profile(collectives=(measured(NODE, (1_000, 10)), measured(NODE, (3_000, 30), (1_000, 12))))
    curve = collective_curve("all_gather", NODE, profile)
    assert [curve.time_ns(size) for size in (1_000, 2_000, 3_000)] == [12, 21, 30]


@pytest.mark.parametrize(
    "other",
    [
        measured(NODE, (1, 1), collective="reduce_scatter"),
        measured(Group(num_ranks=8, num_nodes=2, intra=FAST, inter=SLOW), (1, 1)),
    ],
)
def test_curves_of_other_collectives_and_links_are_left_alone(other):
    assert isinstance(collective_curve("all_gather", NODE, Profile(collectives=(other,))), AlphaBeta)


@pytest.mark.parametrize("points", [[(0, 5)], [(10, 0)]])
def test_a_curve_without_bandwidth_is_refused(points):
    profile = Profile(collectives=(measured(PAIR, (1, 1)), measured(NODE, *points)))
    with pytest.raises(InconsistentRequest, match=r"profile\.collectives\[1\]\.points has no point with size"):
        collective_curve("all_gather", NODE, profile)


def test_assumed_rates_and_latencies_are_named():
    numbers = {n.name: n for n in collective_curve("all_gather", NODES, None).sources("all_gather")}
    assert {n.source for n in numbers.values()} == {NumberSource.ASSUMED}
    assert numbers["all_gather over slow: rate"].value == 8_000_000_000
    assert numbers["all_gather over fast: latency"].value == 1_000


def test_a_shape_that_was_not_measured_takes_the_nearest_one_by_the_ratio_of_the_formulas():
    """The link attains half of what the data sheet leads to expect, for as many ranks as there are."""
    formula = AlphaBeta.of(PAIR, passes=1)
    halved = measured(PAIR, *((size, 2 * formula.time_ns(size)) for size in (2**20, 2**24)))
    far = measured(Group(num_ranks=64, num_nodes=1, intra=FAST, inter=None), (2**20, 1), (2**24, 2))
    curve = collective_curve("all_gather", NODE, Profile(collectives=(far, halved)))
    own = AlphaBeta.of(NODE, passes=1)
    for size in (2**20, 2**24):
        assert curve.time_ns(size) == pytest.approx(2 * own.time_ns(size), rel=1e-5)
    (rate,) = curve.sources("all_gather")
    assert (rate.source, rate.basis) == (NumberSource.INTERPOLATED, "scaled from 2 ranks on 1 node")


def test_robust_curves_are_99th_percentiles_where_there_are_any():
    with_tail = CollectiveMeasurement(
        collective="all_gather",
        num_ranks=NODE.num_ranks,
        points=(
            CurvePoint(size_bytes=1_000, duration_ns=100, quantiles=Quantiles(p10=90, p99=300)),
            CurvePoint(size_bytes=2_000, duration_ns=150, quantiles=Quantiles(p10=90, p99=450)),
        ),
    )
    without = measured(NODE, (1_000, 100), (2_000, 150))
    for measurement, expected_ns, basis in (
        (with_tail, 300, "99th percentile"),
        (without, 100, "median: no 99th percentile was measured"),
    ):
        profile = Profile(collectives=(measurement,))
        curve = collective_curve("all_gather", NODE, profile, robust=True)
        assert curve.time_ns(1_000) == expected_ns
        assert [number.basis for number in curve.sources("")] == [basis]
        assert collective_curve("all_gather", NODE, profile).time_ns(1_000) == 100
