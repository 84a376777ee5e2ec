"""Memory and streams over a step: the same numbers as the predictions, also when thinned out."""

from pathlib import Path

import pytest

from api.cli.by_hand import ByHand
from benchmarks.deep_models import deep_model
from planner.schema import ClusterDescription, GradientSync, PlanRequest, Workload
from planner.simulate import predict
from planner.simulate.memory_series import memory_samples, thinned
from planner.simulate.streams import STALLS, stalled_ns, tracks_of, window
from planner.simulate.timeline import timeline_of

CLUSTER = Path(__file__).parents[3] / "examples" / "clusters" / "h100-64.json"


@pytest.fixture(scope="module")
def request_():
    return PlanRequest(
        model=deep_model("llama-3-8b", 40),
        cluster=ClusterDescription.from_json(CLUSTER.read_bytes()),
        workload=Workload(micro_batch=1, sequence=2048, global_batch=192),
    )


@pytest.fixture(scope="module")
def decisions(request_):
    return ByHand(checkpoint=("full",), prefetch=1).decisions(request_)


@pytest.fixture(scope="module")
def last_only(decisions):
    runtime = decisions.runtime.model_copy(update={"gradient_sync": GradientSync.LAST_MICRO_BATCH})
    return decisions.model_copy(update={"runtime": runtime})


@pytest.mark.parametrize("chosen", ["decisions", "last_only"])
def test_step_stalls_and_peak_are_those_of_the_predictions(request_, chosen, request) -> None:
    decisions = request.getfixturevalue(chosen)
    predictions, timeline = predict(request_, decisions), timeline_of(request_, decisions)
    assert timeline.step_time_ns == predictions.step_time_ns
    breakdown = predictions.breakdown.model_dump()
    exposed = {name: value for name, value in breakdown.items() if name.startswith("exposed") and value}
    assert stalled_ns(timeline) == exposed
    samples = memory_samples(timeline)
    assert [sample.time_ns for sample in samples] == sorted(sample.time_ns for sample in samples)
    peak = max(samples, key=lambda sample: sample.point.total_bytes)
    assert peak.point.total_bytes == predictions.peak.allocated_bytes
    assert peak.point.moment == predictions.peak.moment
    assert peak.point.by_category_bytes == predictions.peak.by_category_bytes


def test_thinning_loses_no_peak(request_, decisions) -> None:
    samples = memory_samples(timeline_of(request_, decisions))
    few = thinned(samples, 40)
    assert len(samples) > 500
    assert len(few) < 60
    assert (few[0], few[-1]) == (samples[0], samples[-1])
    assert max(few, key=lambda sample: sample.point.total_bytes) == max(
        samples, key=lambda sample: sample.point.total_bytes
    )
    for category in samples[0].point.by_category_bytes:
        assert max(one.bytes_of(category) for one in few) == max(one.bytes_of(category) for one in samples)
    assert thinned(samples, len(samples)) == samples


def test_windows_keep_all_work_and_show_detail_where_there_is_room(request_, decisions) -> None:
    timeline = timeline_of(request_, decisions)
    tracks = tracks_of(timeline)
    coarse = window(tracks, 0, timeline.shown_ns, most=20)
    for track, work in tracks.items():
        assert sum(one.busy_ns for one in coarse[track]) == sum(one.busy_ns for one in work)
        assert sum(one.num for one in coarse[track]) == len(work)
    assert len(coarse["compute"]) < 45
    causes = {one.kind for one in tracks[STALLS]}
    assert {one.kind for one in coarse[STALLS]} == causes
    start_ns = tracks["compute"][60].start_ns
    fine = window(tracks, start_ns, start_ns + timeline.shown_ns // 100, most=1000)
    assert fine["compute"]
    assert all(one.num == 1 and one in tracks["compute"] for one in fine["compute"])
