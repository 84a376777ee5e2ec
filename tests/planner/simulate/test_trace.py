"""The Chrome trace of a replay says the same as the replay."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from planner.program.events import Stream
from planner.simulate.predict import program_of
from planner.simulate.replay import replay
from planner.simulate.trace import chrome_trace
from tests.planner.random_requests import random_decisions, random_request

SEEDS = (0, 3, 7, 12)


def traced(seed: int):
    request = random_request(seed)
    decisions = random_decisions(request, seed + 1)
    run = replay(program_of(request, decisions).program, points=True)
    return run, chrome_trace(run, name="a name", optimizer_ns=5000)


def by_track(trace) -> dict[str, list[dict]]:
    titles = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks[titles[event["tid"]]].append(event)
    return tracks


@pytest.mark.parametrize("seed", SEEDS)
def test_tracks_hold_every_operation_without_overlap(seed):
    run, trace = traced(seed)
    assert json.loads(json.dumps(trace)) == trace
    tracks = by_track(trace)
    for stream in Stream:
        spans = [span for span in run.spans if span.stream is stream]
        slices = [event for event in tracks[stream.value] if event["name"] != "optimizer step"]
        assert [(e["ts"] * 1000, e["dur"] * 1000) for e in slices] == [
            (pytest.approx(span.start_ns), pytest.approx(span.end_ns - span.start_ns)) for span in spans
        ]
    for events in tracks.values():
        for earlier, later in pairwise(events):
            assert earlier["ts"] + earlier["dur"] <= later["ts"] + 1e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_stalls_fill_the_gaps_of_the_compute_stream(seed):
    run, trace = traced(seed)
    stalled = sum(event["dur"] for event in by_track(trace)["stalls"])
    worked = sum(span.duration_ns for span in run.spans if span.stream is Stream.COMPUTE)
    assert stalled * 1000 + worked == pytest.approx(run.micro_batch_ns)


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_counters_reach_the_peak_and_never_go_back_in_time(seed):
    run, trace = traced(seed)
    totals = [event for event in trace["traceEvents"] if event["name"] == "memory in all"]
    parts = [event for event in trace["traceEvents"] if event["name"] == "memory"]
    assert len(totals) == len(run.points)
    assert max(event["args"]["bytes"] for event in totals) == run.peak.total_bytes
    assert [sum(event["args"].values()) for event in parts] == [event["args"]["bytes"] for event in totals]
    assert all(earlier["ts"] <= later["ts"] for earlier, later in pairwise(totals))
    assert totals[-1]["ts"] == run.micro_batch_ns / 1000
