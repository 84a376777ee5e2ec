import pytest

from planner.schema import OptimizerGroup
from runtime_client.dryrun import MemoryRecord, run_isolated

PUBLISHED_MIB = {
    "default": 1339.7,
    "no_reshard": 1731.7,
    "hybrid": 1550.4,
    "mixed": 906.7,
    "checkpointed": 699.1,
    "mixed_checkpointed": 554.1,
    "prefetch_2": 1339.7,
}
"""Eight blocks, width 1024, vocabulary 32,000, batch 2 x 512 at 64 ranks, fp32 unless mixed; second step."""


@pytest.fixture(scope="module")
def records(decide, job) -> dict[str, MemoryRecord]:
    decisions = {
        "default": decide(8),
        "no_reshard": decide(8, reshard=False),
        "hybrid": decide(8, mesh=(8, 8)),
        "mixed": decide(8, mixed=True),
        "checkpointed": decide(8, checkpointed=8),
        "mixed_checkpointed": decide(8, mixed=True, checkpointed=8),
        "prefetch_2": decide(8, prefetch=2),
        "grouped": decide(8, grouped=True),
        "accumulating": decide(8, num_micro_batches=2),
        "integer": decide(8, reshard=8),
        "one_on_host": decide(8, on_host=("layers.3",)),
        "one_on_host_accumulating": decide(8, on_host=("layers.3",), num_micro_batches=2),
        "one_on_host_mixed": decide(8, on_host=("layers.3",), mixed=True, mesh=(2, 32)),
        "whole_gradients": decide(8, num_micro_batches=2, gradient_sync="last_micro_batch"),
        "kept_after_backward": decide(8, num_micro_batches=2, kept_after_backward=("layers.0",)),
    }
    jobs = [job("memory", chosen, function="example", sequence=512) for chosen in decisions.values()]
    return dict(zip(decisions, run_isolated(jobs), strict=True))


@pytest.mark.parametrize("name", PUBLISHED_MIB)
def test_peaks_are_those_of_the_published_experiment(records, name):
    assert records[name].micro_batch.total_bytes / 2**20 == pytest.approx(PUBLISHED_MIB[name], abs=0.06)


BLOCK_BYTES = 4 * (4 * 1024**2 + 3 * 1024 * 2816 + 2 * 1024)
STEP_COUNTS_BYTES = 4 * (2 + 8 * 9 + 1)
PARAMETERS_BYTES = 4 * (2 * 32000 * 1024 + 8 * (4 * 1024**2 + 3 * 1024 * 2816 + 2 * 1024) + 1024)


def test_between_steps_only_shards_states_and_inputs_live(records):
    inputs = 2 * 2 * 512 * 8
    assert records["default"].persistent_bytes == 3 * PARAMETERS_BYTES // 64 + inputs
    assert records["default"].persistent_host_bytes == STEP_COUNTS_BYTES


def test_the_foreach_step_adds_gradients_and_one_copy_of_the_shards(records):
    record = records["default"]
    added = record.optimizer.total_bytes - record.persistent_bytes
    assert added == pytest.approx(2 * PARAMETERS_BYTES / 64, rel=0.01)


def test_accumulated_gradients_stay_until_the_step(records):
    more = records["accumulating"].micro_batch.total_bytes - records["default"].micro_batch.total_bytes
    assert more == pytest.approx(PARAMETERS_BYTES / 64, rel=0.01)


def test_the_norm_and_head_unit_frees_the_head_before_the_loss(records):
    assert records["grouped"].micro_batch.total_bytes < records["default"].micro_batch.total_bytes
    assert records["grouped"].micro_batch.in_backward


def test_integer_reshard_keeps_an_eighth_of_every_block_but_the_root(records):
    blocks = PARAMETERS_BYTES - 4 * (2 * 32000 * 1024 + 1024)
    more = records["integer"].micro_batch.total_bytes - records["default"].micro_batch.total_bytes
    assert 0 < more <= blocks / 8


def test_an_offloaded_unit_keeps_shards_and_state_in_host_memory(records):
    default, offloaded = records["default"], records["one_on_host"]
    assert default.persistent_bytes - offloaded.persistent_bytes == 3 * BLOCK_BYTES // 64
    assert default.persistent_host_bytes == default.step_counts_bytes == STEP_COUNTS_BYTES
    assert offloaded.persistent_host_bytes - STEP_COUNTS_BYTES == 3 * BLOCK_BYTES // 64
    mixed = records["one_on_host_mixed"]
    assert mixed.persistent_host_bytes - STEP_COUNTS_BYTES == 3 * BLOCK_BYTES // 32


def test_gradients_of_an_offloaded_unit_join_them_and_the_optimizer_steps_there(records):
    offloaded = records["one_on_host"]
    gradients = BLOCK_BYTES // 64
    assert offloaded.micro_batch.host_bytes == offloaded.persistent_host_bytes + gradients
    assert offloaded.optimizer.host_bytes - offloaded.micro_batch.host_bytes == pytest.approx(gradients, abs=64)
    assert offloaded.peak_host_bytes == offloaded.optimizer.host_bytes
    less = records["default"].optimizer.total_bytes - offloaded.optimizer.total_bytes
    assert less == pytest.approx(5 * gradients, rel=0.001)


def test_while_gradients_accumulate_on_the_host_one_parameter_is_there_twice(records):
    more = (
        records["one_on_host_accumulating"].micro_batch.host_bytes - records["one_on_host"].micro_batch.host_bytes
    )
    assert more == 4 * 1024 * 2816 // 64, "the largest"


def test_gradients_that_are_not_reduced_stay_whole_until_the_last_micro_batch(records):
    whole, default = records["whole_gradients"], records["default"]
    more = whole.micro_batch.total_bytes - default.micro_batch.total_bytes
    assert 0.9 < more / PARAMETERS_BYTES <= 1


def test_a_unit_that_is_kept_after_backward_is_alive_in_the_next_forward(records):
    more = records["kept_after_backward"].micro_batch.total_bytes - records["accumulating"].micro_batch.total_bytes
    assert more == 0, "its own post-forward frees it, before the peak"


def test_optimizers_differ_in_what_they_keep(decide, job):
    groups = {
        "adamw": OptimizerGroup(),
        "fused": OptimizerGroup(implementation="fused"),
        "sgd": OptimizerGroup(optimizer="sgd"),
        "momentum": OptimizerGroup(optimizer="sgd_momentum"),
    }
    jobs = [job("memory", decide(), optimizer_groups=(group,)) for group in groups.values()]
    adamw, fused, sgd, momentum = run_isolated(jobs)
    assert sgd.persistent_bytes < momentum.persistent_bytes < adamw.persistent_bytes < fused.persistent_bytes
    assert fused.persistent_bytes == adamw.persistent_bytes + adamw.persistent_host_bytes, "step counts"
    assert fused.optimizer.total_bytes < adamw.optimizer.total_bytes
