"""Every knob of a plan on real ranks: the weights after five steps, and the collectives of each.

Two and four gloo ranks train a small Llama by a plan that turns the knob, and by plain FSDP2 without a plan. Of
each case:

- the weights are those of the run without a plan: bit by bit, or within a tolerance where sums are added in another
  order or numbers are narrower (`tests.real.client_cases`);
- every weight moved;
- each rank issued exactly the collectives that the planner predicts from a description of the model, with their
  bytes and in their order.

A tower that all ranks but one skip in every second step (`tests.real.towers`) is compared with an unsharded copy
that gets the batches of all ranks instead: without a plan its ranks hang.

Results are appended to `docs/measurements/client/matrix.jsonl`, one line for a case and a number of ranks; those of
the same commit are not run again. Run from the repository: `python -m benchmarks.verify_client`, or
`make verify-client`.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.record import done_before, provenance
from planner.program.outline import OutlineKind
from planner.program.predicted import predicted_outline
from planner.schema import DType, ModelDescription
from runtime_client.describe import TrainingExample, describe, token_inputs
from tests.real.client_cases import ANOTHER_ORDER, CASES, MICRO_BATCH, SEQUENCE, build
from tests.real.launch import ROOT, run_ranks
from tests.real.test_towers import planned

OUTPUT = ROOT / "docs" / "measurements" / "client" / "matrix.jsonl"
SCRIPT = ROOT / "tests" / "real" / "client_ranks.py"
NUM_RANKS = (2, 4)
CONDITIONAL = "tower that ranks skip"
_COLLECTIVES = (OutlineKind.ALL_GATHER, OutlineKind.REDUCE_SCATTER, OutlineKind.ALL_REDUCE)


@cache
def described(param_dtype: DType | None, output_dtype: DType | None) -> ModelDescription:
    """The model as a user would describe it."""
    return describe(
        lambda: TrainingExample(model=build(), inputs=token_inputs),
        name="small llama",
        micro_batch=MICRO_BATCH,
        sequence=SEQUENCE,
        param_dtype=param_dtype,
        output_dtype=output_dtype,
    )


def expected(name: str, num_ranks: int) -> list[list[Any]]:
    """The collectives of a step, by the planner: kind and bytes."""
    made = CASES[name].decisions(num_ranks)
    outline = predicted_outline(described(made.param_dtype, made.output_dtype), made, sequence=SEQUENCE)
    return [[str(one.kind), one.size_bytes] for one in outline if one.kind in _COLLECTIVES]


def measured(names: Sequence[str], num_ranks: int, folder: Path) -> list[dict[str, Any]]:
    """Results of cases on so many ranks, the worst of the ranks for each."""
    file = folder / "expected.json"
    file.write_text(json.dumps({name: expected(name, num_ranks) for name in names}))
    outputs = run_ranks(SCRIPT, num_ranks, [str(file), *names], timeout_s=900, log_dir=folder / "logs")
    lines = [list(map(json.loads, output.stdout.splitlines())) for output in outputs]
    return [_worst(name, num_ranks, ranks) for name, *ranks in zip(names, *lines, strict=True)]


def conditional(num_ranks: int, folder: Path) -> dict[str, Any]:
    """The result of a tower that some ranks skip."""
    file = folder / "decisions.json"
    file.write_text(planned(num_ranks, "tower*").model_dump_json())
    outputs = run_ranks(SCRIPT.with_name("towers.py"), num_ranks, [str(file)], log_dir=folder / "tower logs")
    difference = max(json.loads(output.stdout)["difference"] for output in outputs)
    return {
        "key": f"{CONDITIONAL} on {num_ranks}",
        "case": CONDITIONAL,
        "ranks": num_ranks,
        "difference": difference,
        "allowed": ANOTHER_ORDER,
        "equal": difference <= ANOTHER_ORDER,
    }


def _worst(name: str, num_ranks: int, ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    difference = max(rank["difference"] for rank in ranks)
    allowed = CASES[name].allowed(num_ranks)
    return {
        "key": f"{name} on {num_ranks}",
        "case": name,
        "ranks": num_ranks,
        "difference": difference,
        "allowed": allowed,
        "collectives": ranks[0]["collectives"],
        "moved": all(rank["moved"] > 0 for rank in ranks),
        "program_equal": all(rank["program_equal"] and rank["first_step_equal"] for rank in ranks),
        "equal": difference <= allowed and all(rank["program_equal"] and rank["moved"] > 0 for rank in ranks),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="also those that this commit has results of")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("cases", nargs="*", help="names; all without any")
    arguments = parser.parse_args()
    done = set() if arguments.again else done_before(arguments.output, "key")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    wanted = arguments.cases or (*CASES, CONDITIONAL)
    for num_ranks in NUM_RANKS:
        left = [name for name in wanted if f"{name} on {num_ranks}" not in done]
        names = [name for name in left if name in CASES and CASES[name].min_ranks <= num_ranks]
        with tempfile.TemporaryDirectory() as folder:
            if names:
                results += measured(names, num_ranks, Path(folder))
            if CONDITIONAL in left:
                results.append(conditional(num_ranks, Path(folder)))
    with arguments.output.open("a") as output:
        for line in results:
            output.write(json.dumps(provenance() | line) + "\n")
    for line in results:
        if not line["equal"]:
            print(line)
    num_equal = sum(line["equal"] for line in results)
    print(f"{num_equal} equal, {len(results) - num_equal} different, {len(done)} done before")
    return int(num_equal < len(results))


if __name__ == "__main__":
    sys.exit(main())
