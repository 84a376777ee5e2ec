"""Launch the ranks of one job and read what they measured."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.network.job import Job
from benchmarks.network.namespaces import INTERFACE, Place, places

ROOT = Path(__file__).parents[2]
_PORT = 29511
_NO_PAGING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**26)}
"""The heap keeps what was freed: pages that the kernel clears anew would count as copies."""


class RanksFailed(RuntimeError):
    """A rank ended with an error, or took too long."""


def run(job: Job, num_ranks: int, *, nice: int = 0, timeout_s: float = 1800) -> list[dict[str, Any]]:
    """Measure all variants of a job.

    Raises:
        RanksFailed: with what the ranks printed.
        OSError: the network could not be made.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        places(num_ranks, megabits=job.megabits, delay_us=job.delay_us) as at,
    ):
        path, output = Path(folder) / "job.json", Path(folder) / "output.json"
        path.write_text(job.to_json())
        logs = [Path(folder) / f"rank{rank}.log" for rank in range(num_ranks)]
        ranks = [
            _start(place, rank, at, [str(path), str(output)], logs[rank], nice) for rank, place in enumerate(at)
        ]
        try:
            codes = [rank.wait(timeout=timeout_s) for rank in ranks]
        except subprocess.TimeoutExpired:
            codes = [-1]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if any(codes):
            printed = "\n".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in logs)
            raise RanksFailed(f"ranks ended with {codes}\n{printed}")
        found: list[dict[str, Any]] = json.loads(output.read_text())
        return found


def _start(
    place: Place, rank: int, at: list[Place], words: list[str], log: Path, nice: int
) -> subprocess.Popen[bytes]:
    cores = sorted(os.sched_getaffinity(0))
    environment = {
        **os.environ,
        **_NO_PAGING,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(len(at)),
        "MASTER_ADDR": at[0].address,
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.network.rank", *words]
    with log.open("wb") as out:
        process = subprocess.Popen(
            place.command(command, core=cores[rank % len(cores)], nice=nice),
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
    group = Path(f"/proc/{process.pid}/autogroup")
    if nice and group.exists():  # where sessions are scheduled as groups, that is what counts
        group.write_text(str(nice))
    return process
