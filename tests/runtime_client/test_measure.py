import pytest

from planner.schema import InvalidDocument, Measurement
from runtime_client.errors import ClientError
from runtime_client.measure import StepTimer, step_times
from tests.runtime_client.plans import NO_HASH


def _run(timer: StepTimer, num_steps: int) -> list[tuple[int, int]]:
    for _ in range(num_steps):
        with timer.step():
            pass
    return [(one.first_step, one.last_step) for one in timer.measurements]


def test_first_steps_are_left_out_and_ranges_follow_each_other() -> None:
    assert _run(StepTimer(NO_HASH, run="a", steps_per_range=3, warm_up_steps=2), 10) == [(2, 4), (5, 7)]
    assert _run(StepTimer(NO_HASH, run="a", steps_per_range=2, warm_up_steps=0), 3) == [(0, 1)]
    goes_on = StepTimer(NO_HASH, run="a", steps_per_range=2, warm_up_steps=1, start_step=50)
    assert _run(goes_on, 3) == [(51, 52)]


def test_a_step_that_raises_is_not_counted() -> None:
    timer = StepTimer(NO_HASH, run="a", steps_per_range=2, warm_up_steps=0)
    with pytest.raises(RuntimeError), timer.step():
        raise RuntimeError("out of memory")
    assert _run(timer, 2) == [(0, 1)]


def test_every_range_is_reported() -> None:
    told: list[Measurement] = []
    timer = StepTimer(NO_HASH, run="a", report=told.append, steps_per_range=100, warm_up_steps=0)
    _run(timer, 200)
    timer.wait()
    assert sorted(told, key=lambda one: one.first_step) == timer.measurements
    assert all(one.step_time_p99_ns is not None for one in told)


def test_the_median_of_steps_unless_the_host_runs_ahead_of_its_device() -> None:
    assert step_times([10, 10, 40], 0) == (10, 0)
    assert step_times([10, 10, 40], 5) == (10, 0)
    assert step_times([1, 1, 1], 297) == (100, 0)
    assert step_times([10] * 99 + [1000], 0) == (10, 20)


@pytest.mark.parametrize("numbers", [{"steps_per_range": 0}, {"warm_up_steps": -1}, {"start_step": -1}])
def test_numbers_out_of_range(numbers: dict[str, int]) -> None:
    with pytest.raises(ClientError, match="at least"):
        StepTimer(NO_HASH, run="a", **numbers)


@pytest.mark.parametrize(("plan_id", "run"), [("sha256:x", "a"), (NO_HASH, "a b"), (NO_HASH, "")])
def test_what_the_service_would_refuse_is_refused_before_the_first_step(plan_id: str, run: str) -> None:
    with pytest.raises(InvalidDocument, match="not a valid measurement"):
        StepTimer(plan_id, run=run)
