"""A Llama of transformers that is small enough to train in a test, described as a user would describe it."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from planner.schema import (
    ClusterDescription,
    DType,
    FixedChoice,
    Limits,
    ModelDescription,
    PlanRequest,
    Precision,
    Workload,
)
from runtime_client.describe import TrainingExample, describe, token_inputs
from tests.real.launch import ROOT

VOCABULARY = 251
MICRO_BATCH = 2
SEQUENCE = 64
NUM_MICRO_BATCHES = 2
NUM_STEPS = 5


def build_model() -> nn.Module:
    """The same weights in every process."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def describe_model() -> ModelDescription:
    def build() -> TrainingExample:
        return TrainingExample(model=build_model(), inputs=token_inputs)

    return describe(
        build, name="small llama", micro_batch=MICRO_BATCH, sequence=SEQUENCE, output_dtype=DType.FLOAT32
    )


def request_for(
    model: ModelDescription, num_ranks: int, *, shard: int, memory_bytes: int | None = None
) -> PlanRequest:
    cluster = (ROOT / f"examples/clusters/gloo-{num_ranks}.json").read_text()
    return PlanRequest(
        model=model,
        cluster=ClusterDescription.from_json(cluster),
        workload=Workload(
            micro_batch=MICRO_BATCH,
            sequence=SEQUENCE,
            global_batch=num_ranks * MICRO_BATCH * NUM_MICRO_BATCHES,
            precision=Precision(output_dtype=DType.FLOAT32),
        ),
        limits=Limits(memory_bytes=memory_bytes),
        fixed=(FixedChoice(knob="mesh.shard", value=shard),),
    )
