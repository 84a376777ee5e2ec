"""Every model behind every rate, with and without accumulation, within budgets that bind and that do not.

    python -m benchmarks.network                                  # what is missing; about a minute and a half each
    python -m benchmarks.network --models llama --megabits 500    # a part
    python -m benchmarks.network --summary                        # tables of what is there

Each line of `docs/measurements/network/matrix.jsonl` is one variant: the profile that was measured, the plan that
was made from it, and the steps of all arms, which took turns. What the same commit has measured is left out.
Needs root (`namespaces.why_not`); ends with 2 where there are no network namespaces, with 1 where a bar is missed.
"""

import argparse
import json
import signal
import sys
from itertools import product
from pathlib import Path

from benchmarks.network import namespaces
from benchmarks.network.cell import RanksFailed, run
from benchmarks.network.job import Job, Variant
from benchmarks.network.models import MEASURED, MODELS
from benchmarks.network.summary import failures, tables
from benchmarks.record import done_before, provenance
from runtime_client.describe import describe

OUTPUT = Path(__file__).parents[2] / "docs" / "measurements" / "network" / "matrix.jsonl"
RATES = (250, 500, 1000)
VARIANTS = {
    "plain": Variant(),
    "tight": Variant(is_tight=True),
    "accumulated": Variant(num_micro_batches=2),
    "accumulated, tight": Variant(num_micro_batches=2, is_tight=True),
}


def main() -> int:
    """See the module."""
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that ranks and namespaces are cleared away
    if not given.summary:
        reason = namespaces.why_not()
        if reason is not None:
            print(f"skipped: {reason}", file=sys.stderr)
            return 2
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.touch()
        _measure(given)
    lines = [json.loads(line) for line in given.output.read_text().splitlines()]
    print(tables(lines))
    missed = failures(lines)
    print("\n".join(missed), file=sys.stderr)
    return 1 if missed else 0


def _measure(given: argparse.Namespace) -> None:
    done = done_before(given.output, "name")
    for model, megabits in product(given.models, given.megabits):
        missing = [one for one in given.variants if _name(model, megabits, given.ranks, one) not in done]
        if not missing:
            continue
        spec = MODELS[model]
        description = describe(
            spec.example, name=model, micro_batch=spec.micro_batch, sequence=spec.sequence, param_dtype=None
        )
        for chosen in missing:
            name = _name(model, megabits, given.ranks, chosen)
            job = Job(
                model=model,
                megabits=megabits,
                description=description.to_json(),
                variants=(VARIANTS[chosen],),
                rounds=given.rounds,
                profile_rounds=max(4, given.rounds),
            )
            try:
                found = run(job, given.ranks, nice=given.nice)
            except RanksFailed as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            with given.output.open("a") as out:
                for line in found:
                    out.write(json.dumps({"name": name, **provenance(), **line}) + "\n")
            print(f"{name}: done", flush=True)


def _name(model: str, megabits: int, ranks: int, variant: str) -> str:
    return f"{model}, {megabits} Mbit/s, {ranks} ranks, {variant}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MEASURED))
    parser.add_argument("--megabits", nargs="+", type=int, default=list(RATES), help="rates of the links")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--ranks", type=int, default=2, help="4 on 2 cores is for the record")
    parser.add_argument("--rounds", type=int, default=8, help="steps of each arm")
    parser.add_argument("--nice", type=int, default=0, help="priority of the ranks; -5 on a shared machine")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--summary", action="store_true", help="measure nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
