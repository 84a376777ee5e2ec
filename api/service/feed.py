"""Wakes those who wait for a job of this process, without making them ask the database all the time."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class JobFeed:
    """Threads that change jobs call `notify`; coroutines `watch`. Waiting has a limit, since jobs may also be
    changed by another process, which nobody here hears of.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: dict[str, set[Watcher]] = defaultdict(set)

    def notify(self, job_id: str) -> None:
        """Wake everyone who watches the job; callable from any thread."""
        with self._lock:
            watchers = list(self._watchers.get(job_id, ()))
        for watcher in watchers:
            watcher.wake()

    @contextmanager
    def watch(self, job_id: str) -> "Iterator[Watcher]":
        """Hear of every change from here on."""
        watcher = Watcher()
        with self._lock:
            self._watchers[job_id].add(watcher)
        try:
            yield watcher
        finally:
            with self._lock:
                self._watchers[job_id].discard(watcher)
                if not self._watchers[job_id]:
                    del self._watchers[job_id]


class Watcher:
    """One waiting coroutine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Callable from any thread; too late is no error."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._changed.set)

    async def changed(self, timeout_s: float) -> None:
        """Return at the next change, or after `timeout_s` seconds at the latest."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        self._changed.clear()
