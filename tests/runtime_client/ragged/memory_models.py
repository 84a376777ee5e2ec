"""The model of the memory records, for dry runs that gather in place or not."""

from functools import partial
from pathlib import Path

from runtime_client.apply import apply_decisions
from runtime_client.dryrun import rehearsal
from tests.runtime_client.dryrun.llama import Example, example

PATH = Path(__file__)
SIZES = {"num_blocks": 8, "width": 1024, "heads": 16, "hidden": 2816, "vocabulary": 32000}


def plain() -> Example:
    rehearsal.apply_decisions = apply_decisions
    return example()


def aliased() -> Example:
    rehearsal.apply_decisions = partial(apply_decisions, alias_gathers=True)
    return example()
