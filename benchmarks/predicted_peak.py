"""Predicted peak memory against the peak that the real FSDP2 code reaches in a dry run.

Twenty-five configurations of seven models at 8 and 64 ranks. Prints a markdown table and writes
`docs/measurements/predicted-peak.json`. Run from the repository: `python -m benchmarks.predicted_peak`.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.record import provenance
from benchmarks.small_models import with_low_rank
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    ClusterDescription,
    Decisions,
    DType,
    MeshPlan,
    ModelDescription,
    NodeGroup,
    OptimizerGroup,
    PlanRequest,
    Precision,
    UnitPlan,
    Workload,
)
from planner.simulate.predict import program_of
from planner.simulate.replay import replay
from runtime_client.describe import TrainingExample, describe, from_hf_config
from runtime_client.dryrun import DryRunJob, MemoryRecord, run_isolated

OUTPUT = Path(__file__).parents[1] / "docs" / "measurements" / "predicted-peak.json"
MIB = 2**20


def hugging_face(**config: str | int) -> TrainingExample:
    return from_hf_config(config)()


def llama() -> TrainingExample:
    return hugging_face(
        model_type="llama",
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=16000,
    )


def llama_lora() -> TrainingExample:
    return with_low_rank(llama(), rank=16)


def gpt2() -> TrainingExample:
    return hugging_face(model_type="gpt2", n_embd=512, n_layer=6, n_head=8, vocab_size=16000, n_positions=512)


def qwen3_moe() -> TrainingExample:
    return hugging_face(
        model_type="qwen3_moe",
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        num_experts=16,
        num_experts_per_tok=2,
        vocab_size=8000,
    )


def vit() -> TrainingExample:
    return hugging_face(
        model_type="vit",
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=1536,
        num_labels=1000,
    )


def t5() -> TrainingExample:
    return hugging_face(
        model_type="t5",
        vocab_size=8000,
        d_model=256,
        d_kv=32,
        d_ff=1024,
        num_heads=8,
        num_layers=4,
        num_decoder_layers=4,
    )


def whisper() -> TrainingExample:
    return hugging_face(
        model_type="whisper",
        vocab_size=8000,
        d_model=256,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        max_source_positions=500,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


@dataclass(frozen=True, kw_only=True)
class ModelUnderTest:
    """A builder of this file with the paths of its parts."""

    build: Callable[[], TrainingExample]
    blocks: tuple[str, ...]
    """Lists of blocks, each of `num_blocks`."""
    num_blocks: int
    embedding: str = ""
    tail: tuple[str, ...] = ()
    """Norm and head, where they may be a unit of their own."""
    micro_batch: int = 2
    sequence: int = 512

    @property
    def block_paths(self) -> list[str]:
        """Paths of the blocks, in order."""
        return [f"{blocks}.{index}" for blocks in self.blocks for index in range(self.num_blocks)]


LLAMA = ModelUnderTest(
    build=llama,
    blocks=("model.layers",),
    num_blocks=6,
    embedding="model.embed_tokens",
    tail=("model.norm", "lm_head"),
)
FEW_TOKENS = replace(LLAMA, micro_batch=1, sequence=64)
"""Parameters and their buffers outweigh activations."""
LORA = replace(LLAMA, build=llama_lora)
GPT2 = ModelUnderTest(build=gpt2, blocks=("transformer.h",), num_blocks=6, embedding="transformer.wte")
MOE = ModelUnderTest(build=qwen3_moe, blocks=("model.layers",), num_blocks=4, embedding="model.embed_tokens")
VIT = ModelUnderTest(build=vit, blocks=("vit.layers",), num_blocks=6, micro_batch=16, sequence=16)
T5 = ModelUnderTest(build=t5, blocks=("encoder.block", "decoder.block"), num_blocks=4)
WHISPER = ModelUnderTest(
    build=whisper, blocks=("model.encoder.layers", "model.decoder.layers"), num_blocks=4, sequence=64
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration."""

    name: str
    model: ModelUnderTest = LLAMA
    mesh: tuple[int, int] = (1, 64)
    reshard: bool | None = None
    mixed: bool = True
    checkpoint_every: int = 0
    prefetch: int = 0
    own_embedding: bool = False
    grouped_tail: bool = False
    num_micro_batches: int = 1
    optimizer: OptimizerGroup = field(default_factory=OptimizerGroup)

    def decisions(self) -> Decisions:
        """What is applied and predicted."""
        paths = self.model.block_paths
        units = [
            UnitPlan(
                modules=(path,),
                reshard_after_forward=self.reshard,
                forward_prefetch=tuple(paths[index + 1 : index + 1 + self.prefetch]),
                backward_prefetch=tuple(reversed(paths[max(0, index - self.prefetch) : index])),
            )
            for index, path in enumerate(paths)
        ]
        if self.own_embedding:
            units.append(UnitPlan(modules=(self.model.embedding,)))
        if self.grouped_tail:
            units.append(UnitPlan(modules=self.model.tail))
        checkpointed = paths[:: self.checkpoint_every] if self.checkpoint_every else []
        return Decisions(
            mesh=MeshPlan(replicate=self.mesh[0], shard=self.mesh[1]),
            units=(*units, UnitPlan(modules=("",))),
            activations=tuple(ActivationPlan(module=path, policy=ActivationPolicy.FULL) for path in checkpointed),
            param_dtype=DType.BFLOAT16 if self.mixed else None,
            reduce_dtype=DType.FLOAT32 if self.mixed else None,
            micro_batch=self.model.micro_batch,
            num_micro_batches=self.num_micro_batches,
        )

    def job(self) -> DryRunJob:
        """The dry run of this case."""
        return DryRunJob(
            record="memory",
            build=f"{Path(__file__).resolve()}:{self.model.build.__name__}",
            decisions=self.decisions(),
            sequence=self.model.sequence,
            optimizer_groups=(self.optimizer,),
        )

    def request(self, model: ModelDescription) -> PlanRequest:
        """A request that the decisions answer."""
        decisions = self.decisions()
        num_ranks = decisions.mesh.num_ranks
        cluster = ClusterDescription(
            name=f"{num_ranks} ranks",
            node_groups=(
                NodeGroup(num_nodes=num_ranks // 8, devices_per_node=8, device="H100-80G", intra_node="nvlink4"),
            ),
            inter_node="ib-ndr-400" if num_ranks > 8 else None,
        )
        workload = Workload(
            micro_batch=decisions.micro_batch,
            sequence=self.model.sequence,
            global_batch=decisions.micro_batch * decisions.num_micro_batches * num_ranks,
            precision=Precision(param_dtype=decisions.param_dtype, reduce_dtype=decisions.reduce_dtype),
            optimizer_groups=(self.optimizer,),
        )
        return PlanRequest(model=model, cluster=cluster, workload=workload)


CASES = (
    Case(name="llama"),
    Case(name="llama, 8 ranks, fp32", mesh=(1, 8), mixed=False),
    Case(name="llama, no reshard", reshard=False),
    Case(name="llama, hybrid 8 x 8", mesh=(8, 8)),
    Case(name="llama, all checkpointed", checkpoint_every=1),
    Case(name="llama, every second checkpointed", checkpoint_every=2),
    Case(name="llama, embedding unit", own_embedding=True),
    Case(name="llama, norm and head unit", grouped_tail=True),
    Case(name="llama, SGD, 2 micro-batches", num_micro_batches=2, optimizer=OptimizerGroup(optimizer="sgd")),
    Case(name="llama, few tokens", model=FEW_TOKENS),
    Case(name="llama, few tokens, hybrid 8 x 8", model=FEW_TOKENS, mesh=(8, 8)),
    Case(name="llama, few tokens, prefetch 2, fp32", model=FEW_TOKENS, prefetch=2, mixed=False),
    Case(
        name="llama, few tokens, fused AdamW, 2 micro-batches, 8 ranks",
        model=FEW_TOKENS,
        mesh=(1, 8),
        num_micro_batches=2,
        optimizer=OptimizerGroup(implementation="fused"),
    ),
    Case(name="llama, frozen with LoRA", model=LORA),
    Case(name="llama, frozen with LoRA, all checkpointed", model=LORA, checkpoint_every=1),
    Case(name="gpt2", model=GPT2),
    Case(name="gpt2, no reshard, fp32", model=GPT2, reshard=False, mixed=False),
    Case(name="qwen3-moe", model=MOE),
    Case(name="vit, 8 ranks", model=VIT, mesh=(1, 8)),
    Case(name="vit, all checkpointed, fp32", model=VIT, checkpoint_every=1, mixed=False),
    Case(name="t5, AdamW in a loop", model=T5, optimizer=OptimizerGroup(implementation="for_loop")),
    Case(name="t5, all checkpointed, fp32", model=T5, checkpoint_every=1, mixed=False),
    Case(name="whisper, 8 ranks", model=WHISPER, mesh=(1, 8)),
    Case(name="whisper, all checkpointed, hybrid 8 x 8", model=WHISPER, mesh=(8, 8), checkpoint_every=1),
    Case(name="whisper, SGD momentum", model=WHISPER, optimizer=OptimizerGroup(optimizer="sgd_momentum")),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Recorded and predicted bytes of one case."""

    case: str
    recorded_micro_batch_bytes: int
    recorded_optimizer_bytes: int
    recorded_moment: str
    predicted_micro_batch_bytes: int
    predicted_optimizer_bytes: int
    predicted_moment: str
    micro_batch_error: float
    optimizer_error: float


class Descriptions:
    """Descriptions by model, size and element type of the trace, made once each."""

    def __init__(self) -> None:
        self._known: dict[tuple[ModelUnderTest, DType | None], ModelDescription] = {}

    def of(self, case: Case) -> ModelDescription:
        """The description that a case needs."""
        key = (case.model, case.decisions().param_dtype)
        if key not in self._known:
            self._known[key] = describe(
                case.model.build,
                name=case.model.build.__name__,
                micro_batch=case.model.micro_batch,
                sequence=case.model.sequence,
                param_dtype=key[1],
            )
        return self._known[key]


def predicted(case: Case, model: ModelDescription) -> tuple[int, int, str]:
    """Peak of a micro-batch, bytes at the optimizer step, and the moment of the former."""
    run = replay(program_of(case.request(model), case.decisions()).program, points=True)
    step = [point for point in run.points if point.moment == "optimizer step"]
    rest = [point for point in run.points if point.moment != "optimizer step"]
    peak = max(rest, key=lambda point: point.total_bytes)
    return peak.total_bytes, max(point.total_bytes for point in step), peak.moment


def compare(case: Case, record: MemoryRecord, model: ModelDescription) -> Row:
    micro_batch, optimizer, moment = predicted(case, model)
    place = record.micro_batch.modules[-1] if record.micro_batch.modules else "root"
    direction = "backward" if record.micro_batch.in_backward else "forward"
    return Row(
        case=case.name,
        recorded_micro_batch_bytes=record.micro_batch.total_bytes,
        recorded_optimizer_bytes=record.optimizer.total_bytes,
        recorded_moment=f"{direction} of {place}: {record.micro_batch.operation}",
        predicted_micro_batch_bytes=micro_batch,
        predicted_optimizer_bytes=optimizer,
        predicted_moment=moment,
        micro_batch_error=round(micro_batch / record.micro_batch.total_bytes - 1, 5),
        optimizer_error=round(optimizer / record.optimizer.total_bytes - 1, 5),
    )


def table(rows: list[Row]) -> str:
    lines = [
        "| configuration | recorded MiB | predicted MiB | error | step recorded | step predicted | error |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.case} | {row.recorded_micro_batch_bytes / MIB:.1f} | "
        f"{row.predicted_micro_batch_bytes / MIB:.1f} | {row.micro_batch_error:+.2%} | "
        f"{row.recorded_optimizer_bytes / MIB:.1f} | {row.predicted_optimizer_bytes / MIB:.1f} | "
        f"{row.optimizer_error:+.2%} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.only in case.name]
    records = run_isolated([case.job() for case in cases])
    descriptions = Descriptions()
    rows = []
    for case, record in zip(cases, records, strict=True):
        assert isinstance(record, MemoryRecord)
        rows.append(compare(case, record, descriptions.of(case)))
    print(table(rows))
    document = provenance() | {"rows": [asdict(row) for row in rows]}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
