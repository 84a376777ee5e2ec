"""Peaks of one rank of 64 with even, ragged and aliased shards, as JSON; a process of its own (fake tensors).

Each line: mode, arm, and bytes of a forward without gradients, of a whole micro-batch, of the optimizer step and
between steps, in the third step.
"""

import json
import sys
from functools import partial

import torch

from planner.schema import OptimizerGroup
from runtime_client.dryrun import rehearsal
from runtime_client.dryrun.memory import PeakTracker, _tensors
from tests.runtime_client.dryrun.conftest import make_decisions
from tests.runtime_client.dryrun.llama import Example, example
from tests.runtime_client.ragged.layouts import rows, with_layouts

NUM_BLOCKS, WIDTH = 4, 512
MODES = {
    "float32": {},
    "mixed": {"mixed": True},
    "checkpointed": {"checkpointed": NUM_BLOCKS},
    "hybrid": {"mesh": (8, 8)},
    "kept": {"reshard": False},
    "whole gradients": {"num_micro_batches": 2, "gradient_sync": "last_micro_batch"},
    "partly resharded": {"reshard": 8},
    "grouped": {"grouped": True},
}


def build() -> Example:
    return example(num_blocks=NUM_BLOCKS, width=WIDTH, heads=8, hidden=1408, vocabulary=8000)


def main() -> None:
    for mode in sys.argv[1:]:
        even = make_decisions(NUM_BLOCKS, **MODES[mode])
        with torch.device("meta"):
            ragged, aliased = (
                with_layouts(build().model, even, atom=rows, align=WIDTH, alias=alias) for alias in (False, True)
            )
        for arm, decisions in (("even", even), ("ragged", ragged), ("aliased", aliased)):
            with rehearsal.rehearse(build, decisions, sequence=64, optimizer_groups=(OptimizerGroup(),)) as run:
                print(json.dumps({"mode": mode, "arm": arm, **measure(run)}), flush=True)


def measure(run: rehearsal.Rehearsal) -> dict[str, int]:
    tracker = PeakTracker()
    tracker.track_external(run.model, *run.optimizers)
    tracker.track_external(*_tensors(run.inputs))
    args, kwargs = run.inputs

    def forward() -> None:
        with torch.no_grad():
            run.model(*args, **kwargs)

    found = {}
    for _ in range(3):
        found = {"between": tracker.device_bytes()}
        found["forward"] = tracker.phase(forward).total_bytes
        run.model.reshard()
        count = run.applied.decisions.num_micro_batches
        peaks = [tracker.phase(partial(run.micro_batch, index)).total_bytes for index in range(count)]
        found["micro-batch"] = max(peaks)
        found["optimizer"] = tracker.phase(run.optimizer_step).total_bytes
    return found


if __name__ == "__main__":
    main()
