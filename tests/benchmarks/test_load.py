"""A short sample of `make verify-load`."""

from benchmarks.load import CONNECTIONS, run


def test_every_answer_is_right_and_new_requests_have_one_result_each() -> None:
    found = run("sqlite", seconds=0.2, num_new=3)
    assert found["wrong"] == []
    assert len(found["known"]) == 2 * 3 * len(CONNECTIONS)
    assert all(row["count"] > 0 for row in found["known"])
    assert found["new"]["one_result"] == found["new"]["requests"] == 3
    assert all(row["after"]["planners"] == 0 < row["peak"]["server"] for row in found["memory"])
