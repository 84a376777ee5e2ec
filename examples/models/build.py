"""Regenerates the model descriptions beside this file: `python examples/models/build.py [name ...]`.

The numbers are the published architectures; nothing is downloaded.
"""

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from planner.schema import ModelDescription
from runtime_client.describe import TrainingExample, describe, from_hf_config

LLAMA_3_8B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
}
LLAMA_3_70B = LLAMA_3_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
GPT_2 = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "tie_word_embeddings": True,
}
LORA_RANK = 16
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")


class LoRALinear(nn.Module):
    """A frozen linear layer plus a trainable product of two thin ones."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Output of the base plus the low-rank update."""
        output: Tensor = self.base(hidden) + self.lora_b(self.lora_a(hidden))
        return output


def llama_3_8b_lora() -> TrainingExample:
    """Llama 3 8B with a frozen base and LoRA on the four projections of attention."""
    example = from_hf_config(LLAMA_3_8B)()
    example.model.requires_grad_(False)
    for parent in list(example.model.modules()):
        for name, child in list(parent.named_children()):
            if name in LORA_TARGETS and isinstance(child, nn.Linear):
                setattr(parent, name, LoRALinear(child, LORA_RANK))
    return example


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """A description to ship and the size at which it is traced."""

    build: Callable[[], TrainingExample]
    micro_batch: int
    sequence: int


SHIPPED = {
    "llama-3-8b": Shipped(build=from_hf_config(LLAMA_3_8B), micro_batch=1, sequence=8192),
    "llama-3-70b": Shipped(build=from_hf_config(LLAMA_3_70B), micro_batch=1, sequence=8192),
    "qwen3-30b-a3b": Shipped(build=from_hf_config(QWEN3_30B_A3B), micro_batch=1, sequence=4096),
    "gpt-2": Shipped(build=from_hf_config(GPT_2), micro_batch=4, sequence=1024),
    "llama-3-8b-lora": Shipped(build=llama_3_8b_lora, micro_batch=1, sequence=8192),
}


def build(name: str) -> ModelDescription:
    """Describe one of the shipped models."""
    shipped = SHIPPED[name]
    return describe(shipped.build, name=name, micro_batch=shipped.micro_batch, sequence=shipped.sequence)


def _peak_resident_bytes() -> int:
    """Of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    """Write the descriptions named on the command line, or all."""
    for name in sys.argv[1:] or SHIPPED:
        start = time.process_time()
        model = build(name)
        path = Path(__file__).with_name(f"{name}.json")
        path.write_text(model.to_json())
        print(
            f"{path.name}: {model.num_parameters:,} parameters, {len(model.calls)} calls of "
            f"{len(model.kinds)} kinds, {path.stat().st_size / 1000:.0f} kB, "
            f"{time.process_time() - start:.1f} s of CPU, {_peak_resident_bytes() / 2**30:.2f} GiB resident "
            f"(torch {torch.__version__})"
        )


if __name__ == "__main__":
    main()
