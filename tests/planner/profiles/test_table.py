import pytest

from planner.profiles import NoMeasurements
from planner.profiles.table import read_table
from planner.schema import CallMeasurement, CollectiveMeasurement, CopyMeasurement, CurvePoint, InvalidDocument

CALLS = """kind, micro_batch, sequence, pass, duration_ms
block, 1, 4096, forward, 1.5
block, 1, 4096, backward, 3.25

head, 2, 4096, forward, 0.75
"""
CURVES = """collective,num_ranks,num_nodes,size_bytes,duration_us
all_gather,16,2,1048576,100
all_gather,16,2,16777216,900.5
"""


def test_calls_by_pass() -> None:
    made = read_table(CALLS, name="mine", source="x.csv")
    assert made.name == "mine"
    assert made.calls == (
        CallMeasurement(kind="block", micro_batch=1, sequence=4096, forward_ns=1_500_000, backward_ns=3_250_000),
        CallMeasurement(kind="head", micro_batch=2, sequence=4096, forward_ns=750_000),
    )


def test_points_of_curves() -> None:
    points = (
        CurvePoint(size_bytes=2**20, duration_ns=100_000),
        CurvePoint(size_bytes=2**24, duration_ns=900_500),
    )
    expected = CollectiveMeasurement(collective="all_gather", num_ranks=16, num_nodes=2, points=points)
    assert read_table(CURVES, name="x", source="x.csv").collectives == (expected,)


def test_copies() -> None:
    made = read_table("direction,gb_per_s\nhost_to_device,25.5\n", name="x", source="x.csv")
    assert made.copies == (CopyMeasurement(direction="host_to_device", bytes_per_s=25_500_000_000),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind,micro_batch,sequence,pass,duration_ns\nblock,1,8,sideways,5\n", "line 2: pass is 'sideways'"),
        ("kind,micro_batch,sequence,pass,duration_ns\nblock,one,8,forward,5\n", "micro_batch is 'one'"),
        ("kind,micro_batch,sequence,pass,duration_ns\nblock,1,8,forward,fast\n", "duration_ns is 'fast'"),
        ("kind,micro_batch,sequence,pass,time\nblock,1,8,forward,5\n", "name its column duration_ns or"),
        ("what,duration_ns\nblock,5\n", "has none of the columns kind, collective, direction"),
        ("direction,bytes_per_s\nsideways,5\n", "copies"),
    ],
)
def test_lines_that_cannot_be_read_are_named(text: str, words: str) -> None:
    with pytest.raises(InvalidDocument, match=words):
        read_table(text, name="x", source="x.csv")


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(NoMeasurements, match=r"x\.csv has no lines"):
        read_table("kind,micro_batch\n", name="x", source="x.csv")
