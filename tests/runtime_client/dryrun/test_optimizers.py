"""What the optimizer step of torch needs, against what the cost model says."""

from math import ceil

import pytest

from planner.costs.optimizer import optimizer_state_bytes, optimizer_transient_bytes
from planner.schema import MatrixOwner, OptimizerGroup, Parameter, Workload
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


@pytest.mark.parametrize("ranks", [1, RANKS], ids=["one owner", "all own some"])
def test_muon_through_owners_needs_what_its_rounds_do(decide, job, ranks):
    """The first rank has as much to do as any: it owns all of the matrices, or the largest of each round."""
    sizes = {name: parameter.num_elements for name, parameter, _ in shards() if "layers" in name}
    matrices = [name for name, p, _ in shards() if "layers" in name and len(p.shape) == 2]
    matrices.sort(key=lambda name: -sizes[name])
    owners = tuple(MatrixOwner(parameter=name, rank=place % ranks) for place, name in enumerate(matrices))
    groups = (
        OptimizerGroup(parameters=",".join(matrices), optimizer="muon"),
        OptimizerGroup(implementation="fused"),
    )
    decisions = decide(mesh=(1, RANKS)).model_copy(update={"owners": owners})
    (record,) = run_isolated([job("memory", decisions, optimizer_groups=groups)])
    workload = Workload(micro_batch=2, sequence=16, global_batch=16, optimizer_groups=groups)
    ranks_of = {entry.parameter: entry.rank for entry in owners}
    stored = 4 * sum(elements for _, _, elements in shards())
    transient = record.optimizer.total_bytes - record.persistent_bytes - stored
    assert len(matrices) == 21
    assert transient == optimizer_transient_bytes(workload, shards(), RANKS, ranks_of)
