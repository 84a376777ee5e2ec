"""Plan in a child process: it can be stopped, it cannot take the server down, and its memory is limited."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Literal

import structlog
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from api.service.errors import Interrupted, JobFailed, PlannerKilled
from planner.schema import Plan

_log = structlog.get_logger()

_CHILD = str(Path(__file__).with_name("planner_child.py"))
_KEPT_ENVIRONMENT = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""Nothing else reaches the planner: the server's environment may hold passwords."""
_SHOWN_STDERR_BYTES = 4096


class Progress(BaseModel):
    """State of a search."""

    incumbent_ns: int | None = None
    bound_ns: int | None = None
    incumbent_bytes: int | None = None
    bound_bytes: int | None = None
    elapsed_s: float = 0.0
    message: str = ""


class _ProgressEvent(Progress):
    event: Literal["progress"]


class _PlanEvent(BaseModel):
    event: Literal["plan", "provisional"]
    plan: Plan


class _ErrorEvent(BaseModel):
    event: Literal["error"]
    code: Annotated[str, Field(max_length=100)]
    message: str
    path: str | None = None


_EVENT: TypeAdapter[_ProgressEvent | _PlanEvent | _ErrorEvent] = TypeAdapter(
    Annotated[_ProgressEvent | _PlanEvent | _ErrorEvent, Field(discriminator="event")]
)


class StopSwitch:
    """Stops one planner process, from any thread, also before it has started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.is_struck = False

    def strike(self) -> None:
        """Kill the process, now or when it starts."""
        with self._lock:
            self.is_struck = True
            if self._process is not None:
                self._process.kill()

    def attach(self, process: subprocess.Popen[bytes] | None) -> None:
        """Say which process it stops; None when that has ended."""
        with self._lock:
            self._process = process
            if self.is_struck and process is not None:
                process.kill()


class PlannerProcesses:
    """Starts planner processes and can stop all of them."""

    def __init__(self, command: tuple[str, ...], *, memory_bytes: int, wall_s: float) -> None:
        self._command = command
        self._memory_bytes = memory_bytes
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def stop(self) -> None:
        """Kill every planner; runs end with `Interrupted`, and no new one starts."""
        with self._lock:
            self._stopping = True
            for process in self._running:
                process.kill()

    def run(
        self,
        request_json: bytes,
        switch: StopSwitch,
        *,
        on_progress: Callable[[Progress], None],
        on_provisional: Callable[[Plan], None],
    ) -> Plan:
        """Solve a request; `on_progress`, and `on_provisional` with the best plan so far, are called in here.

        Raises:
            JobFailed: the planner refused the request, crashed, or ran out of time or memory.
            PlannerKilled: a signal ended it that nobody here sent.
            Interrupted: `stop` was called, or the switch was struck.
        """
        with tempfile.TemporaryFile() as request_file, tempfile.TemporaryFile() as errors_file:
            request_file.write(request_json)
            request_file.seek(0)
            with self._started(request_file, errors_file) as process, _limited(process, self._wall_s) as clock:
                switch.attach(process)
                try:
                    last = self._follow(process, on_progress, on_provisional)
                    status = process.wait()
                except JobFailed:
                    if self._stopping or switch.is_struck:
                        raise Interrupted from None
                    raise
                finally:
                    switch.attach(None)
            if self._stopping or switch.is_struck:
                raise Interrupted
            match last:
                case _PlanEvent(plan=plan) if status == 0:
                    return plan
                case _ErrorEvent(code=code, message=message, path=path):
                    raise JobFailed(code, message, path=path, permanent=True)
            raise self._failure(status, errors_file, timed_out=clock.struck)

    @contextmanager
    def _started(self, stdin: IO[bytes], stderr: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
        arguments = [sys.executable, "-I", "-S", _CHILD, str(self._memory_bytes), str(os.getpid())]
        with self._lock:
            if self._stopping:
                raise Interrupted
            process = subprocess.Popen(
                [*arguments, *self._command],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ},
                start_new_session=True,
            )
            self._running.add(process)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
            with self._lock:
                self._running.discard(process)

    def _follow(
        self,
        process: subprocess.Popen[bytes],
        on_progress: Callable[[Progress], None],
        on_provisional: Callable[[Plan], None],
    ) -> _PlanEvent | _ErrorEvent | None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                event = _EVENT.validate_json(line)
            except ValidationError as error:
                if not line.endswith(b"\n"):
                    return None
                _log.error("planner_wrote_nonsense", line=line[:200].decode(errors="replace"))
                raise JobFailed("planner_failed", "the planner answered out of contract") from error
            match event:
                case _ProgressEvent():
                    on_progress(Progress(**event.model_dump(exclude={"event"})))
                case _PlanEvent(event="provisional", plan=plan):
                    on_provisional(plan)
                case _:
                    return event
        return None

    def _failure(self, status: int, errors_file: IO[bytes], *, timed_out: bool) -> JobFailed | PlannerKilled:
        if timed_out:
            return JobFailed("planner_timeout", f"the planner was stopped after {self._wall_s:g} seconds")
        size = errors_file.seek(0, os.SEEK_END)
        errors_file.seek(max(0, size - _SHOWN_STDERR_BYTES))
        tail = errors_file.read().decode(errors="replace")
        _log.error("planner_died", status=status, stderr=tail)
        if "MemoryError" in tail or "bad_alloc" in tail:
            limit = self._memory_bytes // 2**20
            return JobFailed("planner_out_of_memory", f"the planner needs more than its limit of {limit} MiB")
        if status < 0:
            return PlannerKilled(-status)
        return JobFailed(
            "planner_failed", f"the planner ended without a plan (exit status {status}); the server's log says more"
        )


class _Clock:
    struck = False


@contextmanager
def _limited(process: subprocess.Popen[bytes], wall_s: float) -> Iterator[_Clock]:
    clock = _Clock()

    def strike() -> None:
        clock.struck = True
        process.kill()

    timer = threading.Timer(wall_s, strike)
    timer.daemon = True
    timer.start()
    try:
        yield clock
    finally:
        timer.cancel()
