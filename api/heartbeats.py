"""Who is alive: judged by what this process saw, so that clocks of machines need not agree."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Silence:
    """Watches the heartbeats of others; one that has not changed for `timeout_s` seconds belongs to a dead process.

    Time counts only while heartbeats could be read. After an outage of the database, or after this process itself
    stood still, everybody gets the whole time again: nobody could beat, or nobody looked.
    """

    timeout_s: float
    clock: Callable[[], float] = time.monotonic
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Heartbeat of each, and when it was first seen."""
    _looked_at: float | None = None

    def dead(self, heartbeats: Mapping[str, int]) -> list[str]:
        """Look at the heartbeats of others; a heartbeat of 0 says that its process has stopped in good order."""
        now = self.clock()
        if self._looked_at is not None and now - self._looked_at > self.timeout_s / 2:
            self.start_again()
        self._looked_at = now
        self._seen = {
            name: known if (known := self._seen.get(name)) is not None and known[0] == beat else (beat, now)
            for name, beat in heartbeats.items()
        }
        return [name for name, (beat, since) in self._seen.items() if beat == 0 or now - since >= self.timeout_s]

    def start_again(self) -> None:
        """Forget what was seen: from now on everybody has the whole time."""
        self._seen.clear()
