"""Deaths at random moments of each process, on SQLite (one process) and on PostgreSQL (a server and two workers).

A trial sends a few requests while its victim gets SIGKILL (a worker also SIGSTOP, until another has done its work)
at a random moment, then looks whether every accepted request ended with a plan, exactly one, that nothing
overwrote, and whether a planner outlived its parent. The victim is started again, as a supervisor would do it.

Results are appended to `docs/measurements/durability/verify.jsonl`, one line for a trial; those of the same commit
are not run again. Run from the repository:
`python -m benchmarks.verify_durability`, or `make verify-durability`.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.durability.trials import VICTIMS, trial
from benchmarks.durability.world import world_on
from benchmarks.record import provenance

OUTPUT = Path(__file__).parents[1] / "docs" / "measurements" / "durability" / "verify.jsonl"
NUM_TRIALS = 30
"""Moments for each victim on each database."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=NUM_TRIALS, help="of each victim on each database")
    parser.add_argument("--database", choices=sorted(VICTIMS), action="append", help="only on this one")
    parser.add_argument("--victim", action="append", help="only this one")
    parser.add_argument("--again", action="store_true", help="also those that this commit has results of")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    where = provenance()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    done = set() if arguments.again else _done(arguments.output, str(where["commit"]))
    num_bad = 0
    for database in arguments.database or sorted(VICTIMS):
        left = [
            (victim, number)
            for number in range(arguments.trials)
            for victim in VICTIMS[database]
            if (database, victim, number) not in done and victim in (arguments.victim or VICTIMS[database])
        ]
        for found in _results(database, left):
            with arguments.output.open("a") as output:
                output.write(json.dumps(where | found) + "\n")
            print(
                database,
                found["victim"],
                found["trial"],
                found["seconds"],
                "; ".join(found["problems"]),
                flush=True,
            )
            num_bad += bool(found["problems"])
    print(_table(arguments.output, str(where["commit"])))
    return int(num_bad > 0)


def _results(database: str, trials: Sequence[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    if not trials:
        return
    with tempfile.TemporaryDirectory() as folder, world_on(database, Path(folder)) as world:
        for victim, number in trials:
            yield trial(world, victim, number)


def _lines(output: Path, commit: str) -> list[dict[str, Any]]:
    if not output.exists():
        return []
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    return [line for line in lines if line["commit"] == commit]


def _done(output: Path, commit: str) -> set[tuple[str, str, int]]:
    return {(line["database"], line["victim"], line["trial"]) for line in _lines(output, commit)}


def _table(output: Path, commit: str) -> str:
    rows = [
        "| database | victim | moments | accepted | published | starts | orphans | problems |",
        "|" + "---|" * 8,
    ]
    lines = _lines(output, commit)
    for database, victims in sorted(VICTIMS.items()):
        for victim in victims:
            own = [line for line in lines if (line["database"], line["victim"]) == (database, victim)]
            sums = [sum(line[key] for line in own) for key in ("accepted", "published", "starts", "orphans")]
            problems = sum(len(line["problems"]) for line in own)
            rows.append("| " + " | ".join(map(str, (database, victim, len(own), *sums, problems))) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
