"""Which duration counts: measured, fitted over sizes, by the ratio of rooflines, or the roofline."""

import pytest

from planner.costs.compute import PassCost, pass_costs
from planner.schema import (
    Call,
    CallKind,
    CallMeasurement,
    DeviceSheet,
    DType,
    Liveness,
    ModelDescription,
    NumberSource,
    PlanRequest,
    Polynomial,
    Profile,
    Region,
    RegionKind,
    SelectiveCheckpoint,
    Work,
    block_hash,
)
from tests.planner.factories import tiny_model, tiny_request

SHEET = DeviceSheet(
    name="sheet", memory_bytes=10**9, memory_bytes_per_s=10**12, flops_per_s={DType.BFLOAT16: 10**14}
)
MATMUL = Work(flops=Polynomial(bs=7 * 10**6), num_kernels=1)
ATTENTION = Work(flops=Polynomial(bss=10**5), num_kernels=1)


def region(*works: Work) -> Region:
    forward, backward, recompute = works
    return Region(kind=RegionKind.MATMUL, forward=forward, backward=backward, recompute=recompute)


def with_kind(model: ModelDescription, name: str, kind: CallKind) -> ModelDescription:
    return model.model_copy(update={"kinds": {**model.kinds, name: kind}})


def model_of(*regions: Region, **fields: object) -> ModelDescription:
    model = tiny_model(num_blocks=2)
    kind = CallKind.model_validate({"role": "block", "regions": regions, "full": Liveness(), **fields})
    return with_kind(model, "block", kind)


BLOCK = model_of(region(MATMUL, MATMUL, MATMUL), region(ATTENTION, ATTENTION, ATTENTION))


def measured(*points: tuple[int, int, int], which: str = "forward", **fields: object) -> Profile:
    """Times of one pass of the block by (micro-batch, sequence, ns)."""
    return Profile(
        calls=tuple(
            CallMeasurement.model_validate(
                {"kind": "block", "micro_batch": batch, "sequence": tokens, f"{which}_ns": time, **fields}
            )
            for batch, tokens, time in points
        )
    )


def costs_of(profile: Profile, model: ModelDescription = BLOCK) -> dict[tuple[str, str], PassCost]:
    """At the request's 1 x 8."""
    request: PlanRequest = tiny_request(model, profile=profile)
    return pass_costs(request, SHEET, overlapped=False)


def time_at(batch: int, tokens: int) -> int:
    return 1_000 + 50 * batch * tokens + 3 * batch * tokens * tokens


SIZES = ((1, 16), (2, 16), (1, 4), (1, 32))


def test_a_measurement_at_the_size_counts_before_all_else() -> None:
    points = [(batch, tokens, time_at(batch, tokens)) for batch, tokens in SIZES]
    found = costs_of(measured(*points, (1, 8, 77)))["block", "forward"]
    assert (found.duration_ns, found.source, found.basis) == (77, NumberSource.MEASURED, "")


def test_three_terms_are_fitted_to_other_sizes() -> None:
    points = [(batch, tokens, time_at(batch, tokens)) for batch, tokens in SIZES]
    found = costs_of(measured(*points))["block", "forward"]
    assert (found.duration_ns, found.source) == (time_at(1, 8), NumberSource.INTERPOLATED)
    assert found.basis == "fit from 1 x 16, 2 x 16, 1 x 4, 1 x 32"


def test_what_the_fit_misses_counts_near_where_it_does() -> None:
    """Sequences of 32 take a fifth less than the rest, as where a kernel has larger tiles."""
    sizes = [(1, 4), (1, 16), (2, 16), (1, 32), (2, 32)]
    points = [(batch, tokens, time_at(batch, tokens) * (4 if tokens == 32 else 5)) for batch, tokens in sizes]

    def off(batch: int, tokens: int) -> float:
        model = model_of(region(MATMUL, MATMUL, MATMUL), region(ATTENTION, ATTENTION, ATTENTION))
        request: PlanRequest = tiny_request(model, profile=measured(*points))
        workload = request.workload.model_copy(update={"micro_batch": batch, "sequence": tokens})
        at_size = request.model_copy(update={"workload": workload})
        found = pass_costs(at_size, SHEET, overlapped=False)["block", "forward"]
        return found.duration_ns / time_at(batch, tokens)

    assert off(3, 32) == pytest.approx(4, rel=0.05)
    assert off(3, 16) == pytest.approx(5, rel=0.05)


def test_a_block_without_attention_has_no_quadratic_term() -> None:
    """Three noisy points, of which the last would need one."""
    model = model_of(region(MATMUL, MATMUL, MATMUL))
    profile = measured((1, 16, 1_600), (1, 4, 400), (1, 32, 3_300))
    assert costs_of(profile, model)["block", "forward"].duration_ns == pytest.approx(805, abs=5)


def test_two_sizes_are_fitted_by_a_constant_and_the_roofline() -> None:
    model = model_of(region(MATMUL, MATMUL, MATMUL))
    found = costs_of(measured((1, 16, 1_600 + 500), (1, 4, 400 + 500)), model)["block", "forward"]
    assert (found.duration_ns, found.source) == (800 + 500, NumberSource.INTERPOLATED)


def test_one_size_scales_the_roofline() -> None:
    model = model_of(region(MATMUL, MATMUL, MATMUL))
    found = costs_of(measured((2, 16, 9_600)), model)["block", "forward"]
    assert (found.duration_ns, found.source, found.basis) == (2_400, NumberSource.INTERPOLATED, "fit from 2 x 16")


def test_far_from_all_sizes_it_is_assumed() -> None:
    found = costs_of(measured((1, 64, 6_400), (1, 128, 12_800)))["block", "forward"]
    assert found.source is NumberSource.ASSUMED
    assert found.basis == "far from 1 x 64, 1 x 128"


def test_recomputation_follows_from_forward_by_the_roofline() -> None:
    found = costs_of(measured((1, 8, 10_000)))
    assert found["block", "recompute"].duration_ns == 10_000
    assert found["block", "recompute"].source is NumberSource.INTERPOLATED
    assert found["block", "recompute"].basis == "share of forward of block"
    assert found["block", "backward"].basis == "share of forward of block"


def test_recomputation_with_outputs_kept_is_a_share_of_all_of_it() -> None:
    kept = SelectiveCheckpoint(saved_ops=("aten.mm.default",), liveness=Liveness(), recompute=(Work(), ATTENTION))
    model = model_of(region(MATMUL, MATMUL, MATMUL), region(ATTENTION, ATTENTION, ATTENTION), selective=(kept,))
    everything = costs_of(Profile(), model)
    profile = measured((1, 8, 30_000), which="recompute")
    found = costs_of(profile, model)["block", "recompute keeping aten.mm.default"]
    share = (
        everything["block", "recompute keeping aten.mm.default"].duration_ns
        / everything["block", "recompute"].duration_ns
    )
    assert 0 < share < 1
    assert found.duration_ns == pytest.approx(30_000 * share, abs=1)
    assert (found.source, found.basis) == (NumberSource.INTERPOLATED, "share of recompute of block")


def test_parts_share_what_was_measured_of_the_whole() -> None:
    parts = tuple(Call(path=name, kind=f"block.{name}") for name in ("one", "two"))
    model = model_of(region(MATMUL, MATMUL, MATMUL), region(ATTENTION, ATTENTION, ATTENTION), parts=parts)
    for name, work in (("one", MATMUL), ("two", ATTENTION)):
        model = with_kind(model, f"block.{name}", CallKind(role="other", regions=(region(work, work, work),)))
    found = costs_of(measured((1, 8, 50_000)), model)
    of_parts = [found[f"block.{name}", "forward"] for name in ("one", "two")]
    assert sum(part.duration_ns for part in of_parts) == pytest.approx(50_000, abs=1)
    assert {part.source for part in of_parts} == {NumberSource.INTERPOLATED}


def test_a_block_counts_by_its_hash_under_any_name_and_no_other_block_does() -> None:
    block = block_hash(BLOCK, "block")
    renamed = measured((1, 8, 77), kind="elsewhere", block=block)
    assert costs_of(renamed)["block", "forward"].duration_ns == 77
    another = measured((1, 8, 77), block="sha256:" + "a" * 64)
    assert costs_of(another)["block", "forward"] == costs_of(Profile())["block", "forward"]
