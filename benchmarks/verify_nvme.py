"""Kills at random moments of a job whose optimizer state is on a disk, then goes on from what is there.

Two ranks train a small model with all moments in state files. Both get SIGKILL at a random moment, the second up
to 50 ms after the first. The next start takes the latest step that both ranks have complete, reads and verifies it,
and compares it bit for bit with the run that nobody killed; every step that it trains from there is compared too.
What is counted: recovered (equal), begun anew (no step was complete yet), at the end (the job had got there, and
begins anew), refused (an error that says so), wrong.

Trials go on from where earlier ones of the same commit ended (`docs/measurements/nvme.jsonl`, one line each). Run
from the repository: `python -m benchmarks.verify_nvme`, or `make verify-nvme`.
"""

import argparse
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.nvme_job import NUM_RANKS, Start, fork_rank
from benchmarks.record import done_before, provenance
from runtime_client.offload.manifests import read_manifests

OUTPUT = Path(__file__).parents[1] / "docs" / "measurements" / "nvme.jsonl"
NUM_TRIALS = 200
NUM_STEPS = 60
"""Of the run without kills; a job that gets there begins anew."""
LATEST_S = 0.6
APART_S = 0.05


@dataclass
class Job:
    """The ranks of one start, and what they said."""

    processes: list[int]
    pipes: list[int]
    lines: list[list[str]] = field(default_factory=lambda: [[] for _ in range(NUM_RANKS)])
    _rest: list[bytes] = field(default_factory=lambda: [b""] * NUM_RANKS)

    @classmethod
    def start(cls, folder: Path, number: int, *, resume: int | None, in_backward: bool = False) -> "Job":
        """Fork both ranks."""
        told = Start(
            folder=folder,
            rendezvous=folder / f"rendezvous-{number}",
            resume=resume,
            last=NUM_STEPS,
            in_backward=in_backward,
        )
        started = [fork_rank(rank, told) for rank in range(NUM_RANKS)]
        return cls([process for process, _ in started], [pipe for _, pipe in started])

    def listen(self, seconds: float) -> bool:
        """Read what they say for so long, or until all have ended, which it tells."""
        end = time.monotonic() + seconds
        open_pipes = set(self.pipes)
        while open_pipes and (left := end - time.monotonic()) > 0:
            for pipe in select.select(list(open_pipes), [], [], left)[0]:
                text = os.read(pipe, 1 << 16)
                if not text:
                    open_pipes.discard(pipe)
                rank = self.pipes.index(pipe)
                *whole, self._rest[rank] = (self._rest[rank] + text).split(b"\n")
                self.lines[rank] += [line.decode() for line in whole]
        return not open_pipes

    def wait_for(self, word: str, seconds: float) -> bool:
        """Whether every rank said something, or ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.listen(0.005):
                return True
            if all(any(line.startswith(word) for line in lines) for lines in self.lines):
                return True
        return False

    def kill(self, apart_s: float) -> None:
        """SIGKILL, one after the other, and what they said before."""
        for process in self.processes:
            os.kill(process, signal.SIGKILL)
            time.sleep(apart_s if process is self.processes[0] else 0)
        self.end()

    def end(self) -> None:
        """Wait for the end of both."""
        self.listen(10.0)
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            os.waitpid(process, 0)
            os.close(pipe)

    def said(self, word: str) -> list[tuple[int, list[str]]]:
        """Rank and words of each line that begins so."""
        return [(rank, line.split()[1:]) for rank, line in self.all_lines if line.startswith(word)]

    @property
    def all_lines(self) -> list[tuple[int, str]]:
        """Of each rank in order."""
        return [(rank, line) for rank, lines in enumerate(self.lines) for line in lines]


@dataclass(frozen=True)
class Reference:
    """The run without kills: digests by (rank, step)."""

    state: dict[tuple[int, int], str]
    parameters: dict[tuple[int, int], str]

    @classmethod
    def run(cls, folder: Path) -> "Reference":
        """Train to the end; the shards of each step are kept for later starts."""
        (folder / "reference").mkdir()
        (folder / "reference" / "recording").touch()
        job = Job.start(folder, -1, resume=None)
        job.wait_for("ended", 300)
        job.end()
        (folder / "reference" / "recording").unlink()
        shutil.rmtree(folder / "state")

        def digests(word: str) -> dict[tuple[int, int], str]:
            return {(rank, int(step)): digest for rank, (step, digest) in job.said(word)}

        made = cls(digests("recorded"), digests("stepped"))
        if len(made.state) != NUM_RANKS * NUM_STEPS:
            raise RuntimeError(f"the run without kills failed: {job.lines}")
        return made


def complete_steps(folder: Path) -> list[list[int]]:
    """Steps that each rank has complete."""
    folders = (folder / "state" / f"rank-{rank:05d}" for rank in range(NUM_RANKS))
    return [[manifest.step for manifest in read_manifests(one)] if one.exists() else [] for one in folders]


def trial(folder: Path, number: int, reference: Reference) -> dict[str, object]:
    """One start, one death; what the start found is what the death before left."""
    rng = random.Random(number)
    steps = complete_steps(folder)
    resume = max(set.intersection(*map(set, steps)), default=None)
    if resume is None or resume >= NUM_STEPS - 1:
        shutil.rmtree(folder / "state", ignore_errors=True)
        outcome, resume = ("at the end" if resume is not None else "begun anew"), None
    else:
        outcome = "recovered"
    in_backward = number % 2 == 1
    job = Job.start(folder, number, resume=resume, in_backward=in_backward)
    problems = [] if job.wait_for("training", 60) else ["the job did not start"]
    moment_s, apart_s = rng.uniform(0, LATEST_S), rng.uniform(0, APART_S)
    job.listen(moment_s)
    job.kill(apart_s)
    for rank, (step, digest) in job.said("resumed"):
        if reference.state[rank, int(step)] != digest:
            problems.append(f"rank {rank}: the state of step {step} is another than without kills")
    for rank, (step, digest) in job.said("stepped"):
        if reference.parameters[rank, int(step)] != digest:
            problems.append(f"rank {rank}: the parameters of step {step} are others than without kills")
    problems += [line for _, line in job.all_lines if line.startswith("failed") and "Connection" not in line]
    refused = [line for _, line in job.all_lines if line.startswith("refused")]
    if outcome == "recovered" and len(job.said("resumed")) != NUM_RANKS:
        outcome = "refused" if refused else "wrong"
    return {
        "trial": number,
        "in_backward": in_backward,
        "moment_s": round(moment_s, 3),
        "found_steps": steps,
        "resumed_step": resume,
        "outcome": "wrong" if problems else outcome,
        "refused": refused,
        "steps_trained": len(job.said("stepped")) // NUM_RANKS,
        "problems": problems,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=NUM_TRIALS)
    parser.add_argument("--again", action="store_true", help="also those that this commit has results of")
    parser.add_argument("--directory", type=Path, help="where state files go; a temporary one by default")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    where = provenance()
    done = set() if arguments.again else done_before(arguments.output, "trial")
    left = [number for number in range(arguments.trials) if number not in done]
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        folder = Path(name)
        reference = Reference.run(folder) if left else None
        for number in left:
            assert reference is not None
            found = trial(folder, number, reference)
            counts[str(found["outcome"])] += 1
            with arguments.output.open("a") as output:
                output.write(json.dumps(where | found) + "\n")
            print({key: found[key] for key in ("trial", "outcome", "resumed_step", "problems")}, flush=True)
    print(dict(counts))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
