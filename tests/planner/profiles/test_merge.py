import pytest

from planner.profiles import ImplausibleProfile, NoMeasurements
from planner.profiles.merge import merge
from planner.schema import (
    CallMeasurement,
    CollectiveMeasurement,
    CopyMeasurement,
    CurvePoint,
    InconsistentRequest,
    Profile,
    Provenance,
    Quantiles,
)


def host(name: str, time: int, **fields: object) -> Profile:
    where = Provenance(host=name, device="A100", num_samples=10)
    return Profile.model_validate(
        {
            "calls": [
                CallMeasurement(
                    kind="block",
                    micro_batch=1,
                    sequence=8,
                    forward_ns=time,
                    forward_quantiles=Quantiles(p10=time - 5, p99=time + 50, num_samples=10),
                    kept_bytes=100,
                    provenance=where,
                )
            ],
            "collectives": [
                CollectiveMeasurement(
                    collective="all_gather",
                    num_ranks=8,
                    points=(CurvePoint(size_bytes=1_000, duration_ns=time),),
                    provenance=where,
                )
            ],
            "copies": [CopyMeasurement(direction="host_to_device", bytes_per_s=10 * time)],
            "launch_ns": time,
            "context_bytes": time,
            "provenance": where,
            **fields,
        }
    )


def test_medians_of_medians_and_the_widest_quantiles() -> None:
    made = merge([host("a", 1_000), host("b", 1_100), host("c", 1_500)], name="rack")
    (call,) = made.calls
    assert made.name == "rack"
    assert call.forward_ns == 1_100
    assert call.backward_ns is None
    assert call.forward_quantiles == Quantiles(p10=995, p99=1_550, num_samples=30)
    assert call.kept_bytes == 100
    assert call.provenance == Provenance(host="a, b, c", device="A100", num_samples=30)
    assert made.collectives[0].points == (CurvePoint(size_bytes=1_000, duration_ns=1_100),)
    assert made.copies[0].bytes_per_s == 11_000
    assert made.launch_ns == 1_100
    assert made.context_bytes == 1_500


def test_what_one_host_alone_has_is_kept() -> None:
    other = Profile(calls=(CallMeasurement(kind="head", micro_batch=1, sequence=8, forward_ns=7),))
    made = merge([host("a", 1_000), other])
    assert [(call.kind, call.forward_ns) for call in made.calls] == [("block", 1_000), ("head", 7)]


def test_one_profile_is_itself() -> None:
    assert merge([host("a", 1_000)]) == host("a", 1_000)


def test_a_host_that_contradicts_the_others_is_refused() -> None:
    with pytest.raises(ImplausibleProfile, match=r"profile\.calls\[2\]\.forward_ns is 1,000,000 ns.*outlier"):
        merge([host("a", 1_000), host("b", 1_100), host("c", 1_000_000)])


@pytest.mark.parametrize("field", ["optimizer", "cluster"])
def test_profiles_of_different_things_are_refused(field: str) -> None:
    with pytest.raises(InconsistentRequest, match=rf"profile\.{field} differs: 'one', 'two'"):
        merge([host("a", 1_000, **{field: "one"}), host("b", 1_000, **{field: "two"})])


def test_nothing_is_refused() -> None:
    with pytest.raises(NoMeasurements):
        merge([])
