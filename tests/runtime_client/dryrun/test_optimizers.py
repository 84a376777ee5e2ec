"""What the optimizer step of torch needs, against what the cost model says."""

from math import ceil

import pytest

from planner.costs.optimizer import optimizer_state_bytes, optimizer_transient_bytes
from planner.schema import OptimizerGroup, Parameter, Workload
from runtime_client.dryrun import DryRunError, run_isolated
from tests.runtime_client.dryrun.llama import small

RANKS = 8
GROUPS = [
    OptimizerGroup(optimizer=optimizer, implementation=implementation)
    for optimizer, implementations in (
        ("adamw", ("foreach", "for_loop", "fused")),
        ("adam", ("foreach", "for_loop")),
        ("sgd", ("foreach", "for_loop")),
        ("sgd_momentum", ("foreach", "for_loop")),
    )
    for implementation in implementations
]


def shards() -> list[tuple[str, Parameter, int]]:
    return [
        (name, Parameter(name=name, shape=tuple(p.shape)), ceil(p.shape[0] / RANKS) * (p.numel() // p.shape[0]))
        for name, p in small().model.named_parameters()
    ]


def test_state_and_transients_are_those_of_the_cost_model(decide, job):
    jobs = [job("memory", decide(mesh=(1, RANKS)), optimizer_groups=(group,)) for group in GROUPS]
    parameters = shards()
    stored = 4 * sum(elements for _, _, elements in parameters)
    inputs = 2 * 2 * 16 * 8
    for group, record in zip(GROUPS, run_isolated(jobs), strict=True):
        workload = Workload(micro_batch=2, sequence=16, global_batch=16, optimizer_groups=(group,))
        state = sum(optimizer_state_bytes(workload, *shard) for shard in parameters)
        counts_on_host = "adam" in group.optimizer and group.implementation != "fused"
        assert record.persistent_bytes == stored + state + inputs, group
        assert record.persistent_host_bytes == (4 * len(parameters) if counts_on_host else 0), group
        transient = record.optimizer.total_bytes - record.persistent_bytes - stored
        assert transient == optimizer_transient_bytes(workload, parameters), group


@pytest.mark.parametrize(
    ("optimizer", "implementation"), [("sgd", "fused"), ("sgd_momentum", "fused"), ("adafactor", "foreach")]
)
def test_what_the_planner_refuses_does_not_run(decide, job, optimizer, implementation):
    group = OptimizerGroup(optimizer=optimizer, implementation=implementation)
    with pytest.raises(DryRunError, match=r"NotImplementedError|placement"):
        run_isolated([job("memory", decide(mesh=(1, RANKS)), optimizer_groups=(group,))])
