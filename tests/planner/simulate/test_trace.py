"""The Chrome trace of a step says the same as its replays."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from planner.program.events import Stream
from planner.schema import MemoryCategory, ShardwrightError
from planner.simulate.predict import program_of
from planner.simulate.replay import replay
from planner.simulate.trace import chrome_trace
from tests.planner.random_knobs import random_case
from tests.planner.random_requests import random_decisions, random_request

SEEDS = (0, 3, 7, 12)
DEVICE_NS, HOST_NS = 5_000, 700


def usual(seed: int):
    request = random_request(seed)
    return request, random_decisions(request, seed + 1)


def traced(case, seed: int):
    built = program_of(*case(seed))
    runs = [replay(program, points=True) for program, _ in built.programs]
    trace = chrome_trace(runs, name="a name", optimizer_ns=DEVICE_NS + HOST_NS, cpu_optimizer_ns=HOST_NS)
    return runs, trace


def sound(case, seed: int) -> bool:
    try:
        program_of(*case(seed))
    except ShardwrightError:
        return False
    return True


CASES = [(usual, seed) for seed in SEEDS] + [(random_case, seed) for seed in range(40) if sound(random_case, seed)][
    :12
]


def by_track(trace) -> dict[str, list[dict]]:
    titles = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks[titles[event["tid"]]].append(event)
    return tracks


def starts(runs) -> list[int]:
    found = [0]
    for run in runs:
        found.append(found[-1] + run.micro_batch_ns)
    return found


@pytest.mark.parametrize(("case", "seed"), CASES)
def test_tracks_hold_every_operation_without_overlap(case, seed):
    runs, trace = traced(case, seed)
    assert json.loads(json.dumps(trace)) == trace
    tracks = by_track(trace)
    assert set(tracks) <= {"CPU", "stalls", *(stream.value for stream in Stream)}
    for stream in Stream:
        spans = [
            (start + span.start_ns, span.end_ns - span.start_ns)
            for start, run in zip(starts(runs), runs, strict=False)
            for span in run.spans
            if span.stream is stream
        ]
        slices = [event for event in tracks[stream.value] if event["name"] != "optimizer step"]
        assert [(e["ts"] * 1000, e["dur"] * 1000) for e in slices] == [
            (pytest.approx(start), pytest.approx(length)) for start, length in spans
        ]
    for events in tracks.values():
        for earlier, later in pairwise(events):
            assert earlier["ts"] + earlier["dur"] <= later["ts"] + 1e-6


@pytest.mark.parametrize(("case", "seed"), CASES)
def test_stalls_fill_the_gaps_of_the_compute_stream(case, seed):
    runs, trace = traced(case, seed)
    stalled = sum(event["dur"] for event in by_track(trace)["stalls"])
    worked = sum(run.uses()["compute"].busy_ns for run in runs)
    assert stalled * 1000 + worked == pytest.approx(sum(run.micro_batch_ns for run in runs))
    assert all(event["name"].startswith("waits for ") for event in by_track(trace)["stalls"])


@pytest.mark.parametrize(("case", "seed"), CASES)
def test_the_cpu_issues_or_waits(case, seed):
    runs, trace = traced(case, seed)
    events = [event for event in by_track(trace)["CPU"] if event["name"] != "optimizer step"]
    waited = [event for event in events if event["name"].startswith("waits for ")]
    assert len(waited) == sum(len(run.timing.host_waits) for run in runs)
    issued = sum(event["dur"] for event in events) - sum(event["dur"] for event in waited)
    assert issued * 1000 == pytest.approx(sum(run.uses()["cpu"].busy_ns for run in runs))


@pytest.mark.parametrize(("case", "seed"), CASES)
def test_the_optimizer_steps_at_the_end_first_on_the_device(case, seed):
    runs, trace = traced(case, seed)
    device, host = (event for event in trace["traceEvents"] if event["name"] == "optimizer step")
    end = starts(runs)[-1]
    assert (device["ts"] * 1000, device["dur"] * 1000) == (pytest.approx(end), pytest.approx(DEVICE_NS))
    assert (host["ts"] * 1000, host["dur"] * 1000) == (pytest.approx(end + DEVICE_NS), pytest.approx(HOST_NS))


@pytest.mark.parametrize(("case", "seed"), CASES)
def test_memory_counters_reach_the_peak_and_never_go_back_in_time(case, seed):
    runs, trace = traced(case, seed)
    totals = [event for event in trace["traceEvents"] if event["name"] == "memory in all"]
    parts = [event for event in trace["traceEvents"] if event["name"] == "memory"]
    assert len(totals) == sum(len(run.points) for run in runs)
    assert max(event["args"]["bytes"] for event in totals) == max(run.allocated_bytes for run in runs)
    assert all(set(event["args"]) == set(MemoryCategory) for event in parts)
    assert [sum(event["args"].values()) for event in parts] == [event["args"]["bytes"] for event in totals]
    assert all(earlier["ts"] <= later["ts"] for earlier, later in pairwise(totals))
    assert totals[-1]["ts"] == pytest.approx(starts(runs)[-1] / 1000)
