"""Who fails several times in a row is left alone for a while, and then tried once."""

import pytest

from runtime_client.breaker import FAILURES, PAUSE_S, CircuitBreaker
from runtime_client.errors import ServiceUnavailable


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def opened(clock: Clock) -> CircuitBreaker:
    breaker = CircuitBreaker(clock)
    for _ in range(FAILURES):
        breaker.enter()
        breaker.failed("no route")
    return breaker


def test_it_opens_after_failures_in_a_row():
    breaker = opened(Clock())
    with pytest.raises(ServiceUnavailable, match=r"failed 3 times in a row \(no route\); tried again in 60 s"):
        breaker.enter()


def test_an_answer_between_failures_keeps_it_closed():
    breaker = CircuitBreaker(Clock())
    for _ in range(2 * FAILURES):
        breaker.failed("no route")
        breaker.answered()
        breaker.enter()


def test_after_the_pause_one_call_tries_and_the_others_wait_for_it():
    clock = Clock()
    breaker = opened(clock)
    clock.now_s = PAUSE_S
    breaker.enter()
    with pytest.raises(ServiceUnavailable):
        breaker.enter()
    breaker.answered()
    breaker.enter()


def test_a_failed_try_opens_it_again():
    clock = Clock()
    breaker = opened(clock)
    clock.now_s = PAUSE_S
    breaker.enter()
    breaker.failed("no route")
    clock.now_s += PAUSE_S / 2
    with pytest.raises(ServiceUnavailable, match="failed 4 times"):
        breaker.enter()
