"""What a plan states of memory and host, beside time and peaks."""

import pytest

from planner.schema import ActivationPolicy, InconsistentRequest, ShardwrightError, StateTier
from planner.simulate import predict, replay
from planner.simulate.predict import largest_of, memory_peak, program_of
from tests.planner.factories import tiny_cluster, tiny_decisions, tiny_request
from tests.planner.random_knobs import random_case


def cases(number: int):
    for seed in range(number):
        request, decisions = random_case(seed)
        try:
            yield seed, request, decisions, program_of(request, decisions)
        except ShardwrightError:
            continue


def test_memory_of_every_knob():
    compared = 0
    for seed, request, decisions, built in cases(150):
        predicted = predict(request, decisions)
        peak, runs = predicted.peak, [replay(program) for program, _ in built.programs]
        assert peak.optimizer_step_bytes == runs[-1].peaks.optimizer_bytes, seed
        backward = max(run.peaks.micro_batch_bytes for run in runs)
        assert peak.allocated_bytes == max(backward, peak.optimizer_step_bytes), seed
        assert peak.first_micro_batch_bytes == backward - built.inputs.optimizer_bytes, seed
        assert peak.segments_bytes == sum(peak.segments_by_pool_bytes.values()), seed
        assert all(peak.segments_by_pool_bytes[pool] >= size for pool, size in peak.pools_bytes.items()), seed
        compared += 1
    assert compared > 75


def test_segments_are_left_out_unless_asked_for():
    _, _, _, built = next(cases(5))
    runs = [replay(program) for program, _ in built.programs]
    quick, full = memory_peak(built, runs), memory_peak(built, runs, segments=True)
    assert (quick.segments_by_pool_bytes, quick.segments_bytes) == ({}, 0)
    assert quick == full.model_copy(update={"segments_by_pool_bytes": {}, "segments_bytes": 0})


def test_each_pool_counts_at_its_worst():
    assert largest_of([]) == {}
    request = tiny_request(num_micro_batches=3, cluster=tiny_cluster(2))
    built = program_of(request, tiny_decisions(request))
    pools = [replay(program).pools_bytes for program, _ in built.programs]
    assert largest_of([*pools, {}]) == memory_peak(built, [replay(p) for p, _ in built.programs]).pools_bytes


def test_the_host_is_stated_when_something_is_there():
    on_host = 0
    for seed, request, decisions, built in cases(150):
        predicted = predict(request, decisions)
        units = [unit for unit in decisions.units if unit.optimizer_tier is not StateTier.DEVICE]
        offloaded = [entry for entry in decisions.activations if entry.policy is ActivationPolicy.OFFLOAD]
        if not predicted.host_bytes:
            assert predicted.host_reserved_bytes == predicted.host_budget_bytes == built.cpu_optimizer_ns == 0, seed
            continue
        on_host += 1
        assert units or offloaded, seed
        assert predicted.host_bytes <= predicted.host_reserved_bytes < 2 * predicted.host_bytes, seed
        on_nvme = any(unit.optimizer_tier is StateTier.NVME for unit in decisions.units)
        assert (predicted.nvme_bytes > 0) is on_nvme, seed
        assert predicted.host_budget_bytes == 2**34 // request.cluster.node_groups[0].devices_per_node, seed
        assert 0 <= built.cpu_optimizer_ns <= built.optimizer_ns, seed
    assert on_host > 20


def test_a_plan_has_the_communicators_that_it_asks_for():
    request = tiny_request(cluster=tiny_cluster(4))
    plain, partial = (predict(request, tiny_decisions(request, reshard=reshard)) for reshard in (None, 2))
    assert plain.budget.num_communicators == 1
    assert partial.budget.num_communicators == 1 + 2
    with pytest.raises(InconsistentRequest, match="3 does not divide the shard degree 4"):
        predict(request, tiny_decisions(request, reshard=3))
