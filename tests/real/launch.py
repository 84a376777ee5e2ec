"""Run a script on real ranks: torchrun on loopback, everything captured, killed at a deadline."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository; put on the path of each rank."""


class RanksFailed(AssertionError):
    """A rank exited with an error, or the run was killed at its deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutput:
    """What one rank printed."""

    rank: int
    stdout: str
    stderr: str


def run_ranks(
    script: str | Path,
    num_ranks: int,
    args: Sequence[str] = (),
    *,
    timeout_s: float = 120.0,
    log_dir: Path,
    env: Mapping[str, str] | None = None,
) -> list[RankOutput]:
    """Run `script` on `num_ranks` ranks of this machine and return what each printed, by rank.

    Each rank has one thread, finds the repository on its path and ends as `tests/real/rank.py` explains. `log_dir`
    must be empty or new (below pytest's `tmp_path`); `env` is added to the environment.

    Raises:
        RanksFailed: with the output of every rank.
    """
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes=1", f"--nproc-per-node={num_ranks}", "--max-restarts=0"),
        *("--rdzv-backend=static", "--master-addr=127.0.0.1", f"--master-port={free_port()}"),
        *(f"--log-dir={log_dir}", "--redirects=3"),
        *(str(ROOT / "tests/real/rank.py"), str(script), *args),
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(env or {}),
    )
    try:
        launcher, _ = process.communicate(timeout=timeout_s)
        ending = f"exited with {process.returncode}" if process.returncode else ""
    except subprocess.TimeoutExpired:
        launcher = _kill(process)
        ending = f"did not end within {timeout_s:.0f} s and was killed"
    except BaseException:
        _kill(process)
        raise
    outputs = [_read(log_dir, rank) for rank in range(num_ranks)]
    if ending:
        shown = "\n".join(
            f"--- rank {o.rank} stdout\n{o.stdout}\n--- rank {o.rank} stderr\n{o.stderr}" for o in outputs
        )
        raise RanksFailed(f"{script} {ending}\n{shown}\n--- launcher\n{launcher}")
    return outputs


def free_port() -> int:
    """A TCP port of loopback that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _kill(process: subprocess.Popen[str]) -> str:
    """End the launcher and its ranks, which are sessions of their own; returns what the launcher printed."""
    ranks = _children(process.pid)
    process.kill()
    for pid in ranks:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return process.communicate()[0]


def _children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = status.read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append(int(status.parent.name))
    return found


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    fixed = {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    return {**os.environ, **fixed, **extra}


def _read(log_dir: Path, rank: int) -> RankOutput:
    def text(name: str) -> str:
        found = sorted(log_dir.glob(f"**/{rank}/{name}"))
        return found[-1].read_text(errors="replace") if found else ""

    return RankOutput(rank=rank, stdout=text("stdout.log"), stderr=text("stderr.log"))
