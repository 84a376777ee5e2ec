"""A circuit breaker: whoever failed several times in a row is left alone for a while."""

import threading
import time
from collections.abc import Callable

from runtime_client.errors import ServiceUnavailable

FAILURES = 3
"""So many in a row open the circuit."""
PAUSE_S = 60.0
"""Then nobody is asked for so long; after it one call tries again."""


class CircuitBreaker:
    """Counts failures of one service, from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._closed_at_s = 0.0
        self._last = ""

    def enter(self) -> None:
        """Call before asking.

        Raises:
            ServiceUnavailable: it is not worth while yet.
        """
        with self._lock:
            left_s = self._closed_at_s - self._clock()
            if self._failures < FAILURES:
                return
            if left_s > 0:
                raise ServiceUnavailable(
                    f"not asked, because it failed {self._failures} times in a row ({self._last}); "
                    f"tried again in {left_s:.0f} s"
                )
            self._closed_at_s = self._clock() + PAUSE_S  # this call tries; the others wait for what comes of it

    def failed(self, why: str) -> None:
        """It gave no usable answer."""
        with self._lock:
            self._failures += 1
            self._last = why
            self._closed_at_s = self._clock() + PAUSE_S

    def answered(self) -> None:
        """It answered, if only to refuse."""
        with self._lock:
            self._failures = 0
