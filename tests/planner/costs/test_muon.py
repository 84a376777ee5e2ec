"""Optimizers on sharded parameters: the model against what torch does."""

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from planner.costs.muon import MuonStep
from planner.costs.optimizer import optimizer_state_bytes
from planner.costs.owned_muon import owned_rounds
from planner.schema import DType, OptimizerGroup, OptimizerName, Parameter, Workload

SCRIPT = Path(__file__).with_name("recorded_optimizers.py")
RANKS = (1, 2, 4, 16)
MUON = Workload(
    micro_batch=1,
    sequence=1,
    global_batch=1,
    optimizer_groups=(OptimizerGroup(optimizer=OptimizerName.MUON),),
)


@lru_cache
def recorded(num_ranks: int) -> dict:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(num_ranks)], capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(run.stdout.splitlines()[-1])


def matrices(num_ranks: int) -> list[dict]:
    return [record for record in recorded(num_ranks)["muon"] if "error" not in record]


def parameter(record: dict) -> Parameter:
    return Parameter(name="w", shape=tuple(record["shape"]), dtype=DType(record["dtype"]))


@pytest.mark.parametrize("num_ranks", RANKS)
def test_a_step_is_that_of_torch(num_ranks):
    records = matrices(num_ranks)
    assert len(records) >= 16
    for record in records:
        step = MuonStep.of(parameter(record), record["elements"], num_ranks)
        assert step.flops == record["flops"], record
        assert sorted(step.gathered_bytes) == sorted(record["gathered"]), record
        # The norm of the matrix is reduced too.
        assert sorted(step.all_reduced_bytes) == sorted(size for size in record["all_reduced"] if size > 4), record
        assert step.transient_bytes == record["peak_bytes"], record


@pytest.mark.parametrize("num_ranks", RANKS[1:])
def test_rounds_of_owners_are_those_of_the_client(num_ranks):
    records = recorded(num_ranks)["owned_muon"]
    assert len(records) == 12
    for record in records:
        owners = {f"w{place}": owner for place, (_, owner) in enumerate(record["owned"])}
        shards = [
            (f"w{place}", Parameter(name="w", shape=tuple(shape), dtype=DType(record["dtype"])), elements)
            for place, ((shape, _), elements) in enumerate(zip(record["owned"], record["elements"], strict=True))
        ]
        rounds = owned_rounds(owners, shards)
        assert sum(step.flops for step in rounds) == record["flops"], record
        received = [size for step in rounds for size in (step.exchanged_bytes, step.held_bytes)]
        assert received == record["exchanged"], record
        assert max(step.transient_bytes for step in rounds) == record["peak_bytes"], record


@pytest.mark.parametrize("num_ranks", RANKS)
def test_state_is_one_moment_in_the_storage_dtype(num_ranks):
    for record in matrices(num_ranks):
        assert optimizer_state_bytes(MUON, "w", parameter(record), record["elements"]) == record["state_bytes"]


@pytest.mark.parametrize("num_ranks", [2, 4, 16])
def test_torch_refuses_vectors_and_matrices_with_fewer_rows_than_ranks(num_ranks):
    refused = {tuple(record["shape"]) for record in recorded(num_ranks)["muon"] if "error" in record}
    assert refused == {(24,), (num_ranks - 1, 24)}


def test_no_adafactor_takes_sharded_parameters():
    # One reason in torch: in-place operations on partial norms; another in transformers: plain factors.
    refusals = recorded(2)["adafactor"]
    assert all(
        "in-place operations that require placement changes" in refusals[f"torch {i}"]
        for i in ("foreach", "for_loop")
    )
    assert all("got mixed torch.Tensor and DTensor" in text for name, text in refusals.items() if "transf" in name)


def test_uneven_matrices_are_padded_when_gathered():
    # Ten rows on four ranks: three on the fullest, twelve gathered.
    step = MuonStep.of(Parameter(name="w", shape=(10, 20)), 60, 4)
    assert step.whole_bytes == 12 * 20 * 2
    assert step.gathered_bytes[:3] == (480, 12 * 10 * 2, 480)
