"""Layouts against exhaustive search: every order and every shard size of random small problems.

The exhaustive search shares nothing with the solver: for ever larger shards it tries the orders of all tensors and,
element by element, the places where each may start. That the earliest place is good enough is not assumed
everywhere: of every fifth problem (with few tensors) all places are tried. Also, of each problem:

- the layout passes the check, and the search ended with a proof;
- no bound is above the smallest shards, neither the first one nor that of a search that had to stop at once.

Results are appended to `docs/measurements/layout/verify.jsonl`, one line for a hundred problems; those of the same
commit are not run again. Run from the repository: `python -m benchmarks.verify_layout`, or `make verify-layout`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.record import provenance
from solver.layout.bounds import ShardSizes
from solver.layout.fill import Effort
from solver.layout.problem import LayoutProblem, Tensor, check
from solver.layout.search import solve

OUTPUT = Path(__file__).parents[1] / "docs" / "measurements" / "layout" / "verify.jsonl"
NUM_PROBLEMS = 6000
BATCH = 100
"""Problems of one line of the results."""
EVERY_PLACE = 5
"""One of so many problems is also searched without assuming that the earliest place is best."""
MOST_FOR_EVERY_PLACE = 4
"""Tensors of such a problem."""
HASTY = 20
"""Placements of a search that stops at once."""
ATOMS = (1, 1, 2, 3, 4, 5, 6, 8, 12, 100)


def random_problem(seed: int) -> LayoutProblem:
    """Two to six tensors, equal ones among them, on one to six ranks that may differ."""
    rng = Random(seed)
    largest = rng.choice((12, 24, 48))
    sizes = [(rng.randint(1, largest), rng.choice(ATOMS)) for _ in range(rng.randint(2, 6))]
    if rng.random() < 0.4:
        sizes = [rng.choice(sizes[:2]) for _ in sizes]
    num_ranks = rng.choice((1, 2, 2, 3, 3, 4, 5, 6))
    return LayoutProblem(
        tensors=tuple(
            Tensor(name=f"t{number}", num_elements=elements, atom_elements=atom)
            for number, (elements, atom) in enumerate(sizes)
        ),
        num_ranks=num_ranks,
        alignment_elements=rng.choice((1, 1, 2, 3)),
        shares=tuple(rng.randint(1, 3) for _ in range(num_ranks)) if rng.random() < 0.25 else (),
    )


def smallest_shard(problem: LayoutProblem, *, every_place: bool = False) -> int:
    """The least S over all orders, by trying all smaller ones."""
    orders = set(permutations((tensor.num_elements, tensor.atom_elements) for tensor in problem.tensors))
    shard = problem.alignment_elements
    while True:
        edges = problem.edges(shard)
        if edges[-1] >= problem.num_elements:
            fits = _placing(edges, every_place=every_place)
            if any(fits(order, 0) for order in orders):
                return shard
        shard += problem.alignment_elements


def _placing(edges: Sequence[int], *, every_place: bool) -> Callable[[tuple[tuple[int, int], ...], int], bool]:
    """Whether tensors fit one after the other from a place on; answers for the same rest of an order are kept."""

    @cache
    def fits(order: tuple[tuple[int, int], ...], cursor: int) -> bool:
        if not order:
            return True
        (elements, atom), rest = order[0], order[1:]
        for start in range(cursor, edges[-1] - elements + 1):
            if all((edge - start) % atom == 0 for edge in edges if start < edge < start + elements):
                if fits(rest, start + elements):
                    return True
                if not every_place:
                    return False
        return False

    return fits


def differences(seed: int) -> Iterator[str]:
    """What is wrong with the solver's answer to one problem."""
    problem = random_problem(seed)
    layout = solve(problem)
    least = smallest_shard(problem)
    yield from check(problem, layout)
    if layout.shard_elements != least:
        yield f"shards of {layout.shard_elements} where {least} would do"
    if layout.lower_bound_elements != layout.shard_elements:
        yield f"{layout.shard_elements} is not proven, only {layout.lower_bound_elements}"
    if (first := ShardSizes(problem).next_open(0)) > least:
        yield f"the first bound {first} is above {least}"
    hasty = solve(problem, Effort(HASTY))
    yield from check(problem, hasty)
    if not hasty.lower_bound_elements <= least <= hasty.shard_elements:
        yield f"{least} is not between {hasty.lower_bound_elements} and {hasty.shard_elements}, found in haste"
    is_small = len(problem.tensors) <= MOST_FOR_EVERY_PLACE
    if is_small and seed % EVERY_PLACE == 0 and smallest_shard(problem, every_place=True) != least:
        yield "the earliest place is not the best"


def result(first: int) -> dict[str, Any]:
    """One line of the results."""
    started = time.monotonic()
    found = [f"problem {seed}: {text}" for seed in range(first, first + BATCH) for text in differences(seed)]
    return {
        "first": first,
        "problems": BATCH,
        "equal": not found,
        "differences": found[:5],
        "seconds": round(time.monotonic() - started, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=NUM_PROBLEMS, help="how many, rounded up to hundreds")
    parser.add_argument("--again", action="store_true", help="also those that this commit has results of")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    where = provenance()
    done = set() if arguments.again else _done(arguments.output, str(where["commit"]))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    num_equal = num_different = 0
    for first in range(0, arguments.problems, BATCH):
        if first in done:
            continue
        found = result(first)
        with arguments.output.open("a") as output:
            output.write(json.dumps(where | found) + "\n")
        num_equal += found["equal"]
        num_different += not found["equal"]
        for text in found["differences"]:
            print(text, flush=True)
    print(f"{num_equal} batches of {BATCH} equal, {num_different} different, {len(done)} done before")
    return int(num_different > 0)


def _done(output: Path, commit: str) -> set[int]:
    if not output.exists():
        return set()
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    return {line["first"] for line in lines if line["commit"] == commit}


if __name__ == "__main__":
    sys.exit(main())
