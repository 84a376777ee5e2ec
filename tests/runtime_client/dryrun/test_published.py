from pathlib import Path

from planner.schema import ActivationPlan, ActivationPolicy, Decisions, MeshPlan, UnitPlan
from runtime_client.dryrun import DryRunJob, run_isolated

FILE = Path(__file__).with_name("published.py")
MICRO_BATCH = 4


def memory_job(function: str, blocks: str, *, checkpointed: bool) -> DryRunJob:
    paths = [f"{blocks}.{index}" for index in range(2)]
    policy = ActivationPolicy.FULL
    decisions = Decisions(
        mesh=MeshPlan(shard=8),
        units=(*(UnitPlan(modules=(path,)) for path in paths), UnitPlan(modules=("",))),
        activations=tuple(ActivationPlan(module=path, policy=policy) for path in paths if checkpointed),
        micro_batch=MICRO_BATCH,
        num_micro_batches=1,
    )
    return DryRunJob(record="memory", build=f"{FILE}:{function}", decisions=decisions, sequence=16)


def test_blocks_with_dropout_are_recomputed_as_they_ran():
    jobs = [memory_job("gpt2", "transformer.h", checkpointed=checkpointed) for checkpointed in (False, True)]
    kept, checkpointed = run_isolated(jobs)
    assert checkpointed.micro_batch.total_bytes < kept.micro_batch.total_bytes


def test_initialisers_may_read_values_and_images_are_counted():
    (record,) = run_isolated([memory_job("vit", "vit.layers", checkpointed=False)])
    assert record.persistent_bytes > MICRO_BATCH * 3 * 32 * 32 * 4
