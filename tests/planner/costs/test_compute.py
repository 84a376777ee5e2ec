import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import device
from planner.costs.compute import model_flops, pass_costs, region_ns
from planner.costs.efficiency import COMPUTE_PERCENT
from planner.schema import (
    CallMeasurement,
    DeviceSheet,
    DType,
    InconsistentRequest,
    NumberSource,
    Polynomial,
    Profile,
    Region,
    RegionKind,
    Work,
    Workload,
)
from tests.planner.factories import BLOCK, CallSpec, tiny_model, tiny_request

SHEET = DeviceSheet(
    name="sheet",
    memory_bytes=10**9,
    memory_bytes_per_s=10**12,
    flops_per_s={DType.FLOAT32: 10**12, DType.BFLOAT16: 10**14},
)
WORKLOAD = Workload(micro_batch=2, sequence=10, global_batch=2)


def work(flops=0, moved=0):
    return Work(flops=Polynomial(bs=flops), moved_bytes=Polynomial(bs=moved))


def ns(kind, dtype=DType.BFLOAT16, sheet=SHEET, **amounts):
    return region_ns(Region(kind=kind, dtype=dtype), work(**amounts), WORKLOAD, sheet, path="here")


def test_every_kind_has_an_efficiency():
    assert set(COMPUTE_PERCENT) == set(RegionKind)
    assert all(0 < percent < 100 for percent in COMPUTE_PERCENT.values())


def test_a_matmul_is_bound_by_arithmetic():
    # 20 tokens x 7e9 FLOP at 70 % of 1e14.
    assert ns(RegionKind.MATMUL, flops=7 * 10**9, moved=1) == 2_000_000


def test_a_thin_matmul_is_bound_by_memory():
    # 20 tokens x 8e6 bytes at 80 % of 1e12.
    assert ns(RegionKind.MATMUL, flops=1, moved=8 * 10**6) == 200_000


def test_norms_run_on_vector_units_whatever_their_dtype():
    sheet = SHEET.model_copy(update={"vector_flops_per_s": 10**11})
    assert ns(RegionKind.NORM, flops=10**6, sheet=sheet) == 20 * 10**6 * 2 // 100
    assert ns(RegionKind.NORM, flops=10**6) == 20 * 10**6 * 2 // 1_000


def test_integer_work_of_unknown_kind_runs_on_vector_units():
    assert ns(RegionKind.OTHER, dtype=DType.INT64, flops=10**6) == 20 * 10**6 * 2 // 1_000


def test_nothing_takes_no_time():
    assert ns(RegionKind.MATMUL, dtype=DType.FLOAT64) == 0


@given(
    kind=st.sampled_from(RegionKind),
    flops=st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)),
    moved=st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)),
)
def test_more_work_never_takes_less_time(kind, flops, moved):
    (few, many), (little, much) = sorted(flops), sorted(moved)
    assert ns(kind, flops=few, moved=little) <= ns(kind, flops=many, moved=much)


def test_a_dtype_without_a_rate_is_refused_with_path_and_remedy():
    with pytest.raises(InconsistentRequest) as error:
        ns(RegionKind.MATMUL, dtype=DType.BFLOAT16, sheet=device("V100-32G"), flops=1)
    message = str(error.value)
    assert message.startswith("here is bfloat16, but device 'V100-32G' has no rate for it (it has float16, ")
    assert "flops_per_s.bfloat16" in message


def test_a_measurement_at_this_point_replaces_the_roofline_pass_by_pass():
    calls = (
        CallMeasurement(kind="block", micro_batch=1, sequence=8, forward_ns=111),
        CallMeasurement(kind="elsewhere", micro_batch=1, sequence=8, backward_ns=999),
    )
    model = tiny_model(block=CallSpec(shapes=BLOCK.shapes, flops=10**6))
    costs = pass_costs(tiny_request(model, profile=Profile(calls=calls)), SHEET, overlapped=False)
    assert costs["block", "forward"].duration_ns == 111
    assert costs["block", "forward"].source is NumberSource.MEASURED
    assert costs["head", "forward"].source is NumberSource.ASSUMED


def test_the_last_of_equal_measurements_counts():
    calls = tuple(
        CallMeasurement(kind="block", micro_batch=1, sequence=8, forward_ns=value) for value in (5, 7, None)
    )
    costs = pass_costs(tiny_request(profile=Profile(calls=calls)), SHEET, overlapped=False)
    assert costs["block", "forward"].duration_ns == 7


def test_compute_slows_down_beside_communication_only():
    calls = (CallMeasurement(kind="block", micro_batch=1, sequence=8, forward_ns=90),)
    request = tiny_request(profile=Profile(calls=calls, compute_slowdown_under_communication=0.1))
    assert pass_costs(request, SHEET, overlapped=True)["block", "forward"].duration_ns == 100
    assert pass_costs(request, SHEET, overlapped=False)["block", "forward"].duration_ns == 90


def test_model_flops_count_every_call_without_recomputation():
    model = tiny_model(num_blocks=3, block=CallSpec(shapes=BLOCK.shapes, flops=100))
    assert model_flops(tiny_request(model)) == 3 * 2 * 100
