"""What selective checkpointing keeps, against real FSDP2 as one of 8 ranks."""

from pathlib import Path

from planner.schema import ActivationPlan, ActivationPolicy, Decisions, DType, MeshPlan, UnitPlan
from runtime_client.describe import TrainingExample, describe, from_hf_config
from runtime_client.dryrun import DryRunJob, MemoryRecord, run_isolated

BLOCKS = [f"model.layers.{index}" for index in range(3)]
POINT = (2, 128)


def build() -> TrainingExample:
    """Its loss needs so much that every peak is there, above all that the blocks keep."""
    return from_hf_config(
        {
            "model_type": "llama",
            "vocab_size": 8192,
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": len(BLOCKS),
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        }
    )()


def job(saved_ops: tuple[str, ...]) -> DryRunJob:
    policy = ActivationPolicy.SELECTIVE if saved_ops else ActivationPolicy.NONE
    return DryRunJob(
        record="memory",
        build=f"{Path(__file__).resolve()}:build",
        decisions=Decisions(
            mesh=MeshPlan(shard=8),
            units=(*(UnitPlan(modules=(path,)) for path in BLOCKS), UnitPlan(modules=("",))),
            activations=tuple(ActivationPlan(module=path, policy=policy, saved_ops=saved_ops) for path in BLOCKS),
            param_dtype=DType.BFLOAT16,
            reduce_dtype=DType.FLOAT32,
            micro_batch=POINT[0],
            num_micro_batches=1,
        ),
        sequence=POINT[1],
    )


def test_blocks_keep_what_is_described() -> None:
    model = describe(build, name="llama", micro_batch=POINT[0], sequence=POINT[1])
    kinds = [model.kinds[call.kind] for call in model.calls if call.path in BLOCKS]
    sets = [entry.saved_ops for entry in kinds[0].selective]
    assert len(sets) == 3
    plain, *records = run_isolated([job(()), *map(job, sets)])
    assert isinstance(plain, MemoryRecord)
    for saved_ops, record in zip(sets, records, strict=True):
        assert isinstance(record, MemoryRecord)
        assert "log_softmax_backward" in record.micro_batch.operation
        kept = [next(e for e in kind.selective if e.saved_ops == saved_ops).liveness for kind in kinds]
        less = sum(
            kind.none.kept_bytes(*POINT) - liveness.kept_bytes(*POINT)
            for kind, liveness in zip(kinds, kept, strict=True)
        )
        position_ids = sum(t.size_bytes.at(*POINT) for t in model.shared if t.kept_by == "full")
        measured = plain.micro_batch.total_bytes - record.micro_batch.total_bytes
        assert measured == less - position_ids
