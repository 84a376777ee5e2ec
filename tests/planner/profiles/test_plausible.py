"""A planted outlier and wrong units are refused with path, value, probable unit and remedy; honest noise is not."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.example_plans import request_for
from planner.plan import make_plan
from planner.profiles import ImplausibleProfile, refuse_implausible
from planner.profiles.against import refuse_impossible
from planner.schema import (
    CallMeasurement,
    CollectiveMeasurement,
    CopyMeasurement,
    CurvePoint,
    PlanRequest,
    Profile,
    Quantiles,
)

REQUEST = request_for("gpt-2", "rtx4090-4")
BLOCK = next(call.kind for call in REQUEST.model.calls if call.kind.startswith("block"))
SIZES = ((1, 1024), (1, 512), (2, 512), (1, 256))


def time_ns(batch: int, tokens: int) -> int:
    """About what the block of gpt-2 takes on this device."""
    return 20_000 + 250 * batch * tokens


def call(batch: int, tokens: int, factor: float = 1.0, **fields: object) -> CallMeasurement:
    forward = round(time_ns(batch, tokens) * factor)
    passes = {"forward_ns": forward, "backward_ns": 2 * forward, "recompute_ns": forward} | fields
    return CallMeasurement.model_validate({"kind": BLOCK, "micro_batch": batch, "sequence": tokens, **passes})


def calls(**changed: CallMeasurement) -> Profile:
    made = {f"at_{batch}x{tokens}": call(batch, tokens) for batch, tokens in SIZES} | changed
    return Profile(calls=tuple(made.values()))


def curve(*points: tuple[int, int]) -> Profile:
    made = tuple(CurvePoint(size_bytes=size, duration_ns=time) for size, time in points)
    return Profile(collectives=(CollectiveMeasurement(collective="all_gather", num_ranks=4, points=made),))


def with_profile(profile: Profile) -> PlanRequest:
    return REQUEST.model_copy(update={"profile": profile})


def refusal(profile: Profile) -> str:
    with pytest.raises(ImplausibleProfile) as caught:
        refuse_impossible(with_profile(profile))
    assert str(caught.value).endswith("Measure again, mend the number or leave it out.")
    return str(caught.value)


def test_honest_measurements_pass() -> None:
    refuse_impossible(with_profile(calls()))
    refuse_impossible(with_profile(curve((2**12, 90_000), (2**20, 150_000), (2**24, 2_500_000))))


@given(st.lists(st.floats(0.7, 1.5), min_size=4, max_size=4))
def test_noise_of_half_the_value_is_no_outlier(factors: list[float]) -> None:
    noisy = [call(batch, tokens, factor) for (batch, tokens), factor in zip(SIZES, factors, strict=True)]
    refuse_impossible(with_profile(Profile(calls=tuple(noisy))))


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("factor", [200, 1000])
def test_a_planted_outlier_is_found_among_the_sizes_of_its_block(place: int, factor: int) -> None:
    batch, tokens = SIZES[place]
    planted = calls(**{f"at_{batch}x{tokens}": call(batch, tokens, factor)})
    with pytest.raises(ImplausibleProfile) as caught:
        refuse_implausible(planted)
    found = dict(caught.value.problems)
    assert {path.partition(".forward")[0] for path in found if "forward" in path} == {f"profile.calls[{place}]"}
    message = found[f"profile.calls[{place}].forward_ns"]
    assert f"is {time_ns(batch, tokens) * factor:,} ns for '{BLOCK}' at {batch} x {tokens}" in message
    assert "outlier" in message


@pytest.mark.parametrize(("per_unit", "unit"), [(10**3, "microseconds"), (10**6, "milliseconds")])
def test_a_time_in_another_unit_is_named(per_unit: int, unit: str) -> None:
    """All sizes alike, so that only the data sheet can tell."""
    text = refusal(Profile(calls=tuple(call(batch, tokens, 1 / per_unit) for batch, tokens in SIZES)))
    assert f"profile.calls[0].forward_ns is {round(time_ns(1, 1024) / per_unit)} ns" in text
    assert "but the peak of device" in text
    assert f"it looks like {unit}: nanoseconds are {per_unit:,} times as many" in text


def test_a_time_that_no_block_takes() -> None:
    text = refusal(Profile(calls=(call(1, 1024, 1e6),)))
    assert re.search(
        r"profile\.calls\[0\]\.forward_ns is [\d,]+ ns .* times what device '.*' leads to expect", text
    )


def test_passes_of_one_call_in_two_units() -> None:
    text = refusal(Profile(calls=(call(1, 1024, backward_ns=2 * time_ns(1, 1024) * 1000),)))
    assert "profile.calls[0].backward_ns" in text
    assert "none takes 100 times another" in text


def test_a_median_outside_its_quantiles() -> None:
    odd = call(1, 1024, forward_quantiles=Quantiles(p10=300, p99=400))
    assert "its tenth percentile is 300 and its 99th 400" in refusal(Profile(calls=(odd,)))


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("factor", [1000, 0.001])
def test_an_outlier_in_a_curve(place: int, factor: float) -> None:
    points = [(2**14, 100_000), (2**18, 140_000), (2**22, 700_000), (2**26, 9_000_000)]
    size, time = points[place]
    points[place] = (size, round(time * factor))
    with pytest.raises(ImplausibleProfile) as caught:
        refuse_implausible(curve(*points))
    paths = [path for path, _ in caught.value.problems]
    assert f"profile.collectives[0].points[{place}].duration_ns" in paths


def test_a_curve_that_falls() -> None:
    text = refusal(curve((2**20, 5_000_000), (2**24, 40_000)))
    assert "times neither fall by a factor of 10" in text


def test_a_curve_faster_than_its_link() -> None:
    text = refusal(curve((2**24, 2_500), (2**26, 10_000)))
    assert "link 'pcie4-x16'" in text or "link" in text
    assert "microseconds" in text


@pytest.mark.parametrize(
    ("bytes_per_s", "unit"), [(8 * 25 * 10**9, "bits per second"), (25 * 10**3, "MB/s"), (25, "GB/s")]
)
def test_bandwidths_in_another_unit(bytes_per_s: int, unit: str) -> None:
    copy = CopyMeasurement(direction="host_to_device", bytes_per_s=bytes_per_s)
    text = refusal(Profile(copies=(copy,)))
    assert f"profile.copies[0].bytes_per_s is {bytes_per_s:,} for host_to_device" in text
    assert f"it looks like {unit}" in text


def test_a_plan_is_refused_rather_than_made_of_it() -> None:
    with pytest.raises(ImplausibleProfile, match="microseconds"):
        make_plan(with_profile(Profile(calls=tuple(call(batch, tokens, 1e-3) for batch, tokens in SIZES))))
    with pytest.raises(ImplausibleProfile, match="outlier"):
        make_plan(with_profile(calls(at_1x512=call(1, 512, 1000))))
