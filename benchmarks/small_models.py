"""Small models of many architectures, built from configurations, and the paths of their parts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from benchmarks import ladder
from runtime_client.describe import TrainingExample, from_hf_config

_DECODER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
}


def build(**config: str | int | None) -> TrainingExample:
    """A model from a transformers configuration."""
    return from_hf_config(config)()


def llama() -> TrainingExample:
    return build(model_type="llama", **_DECODER)


def llama_lora() -> TrainingExample:
    """Frozen, with low-rank additions to two projections of every block."""
    return with_low_rank(llama(), rank=4)


def with_low_rank(example: TrainingExample, rank: int) -> TrainingExample:
    """The example frozen, with low-rank additions to the query and value projections of a Llama."""
    example.model.requires_grad_(False)
    for name, module in list(example.model.named_modules()):
        if name.endswith("self_attn"):
            module.q_proj, module.v_proj = (LowRank(old, rank) for old in (module.q_proj, module.v_proj))
    return example


def llama_half_frozen() -> TrainingExample:
    """Embedding and the first half of the blocks are frozen."""
    example = llama()
    example.model.model.embed_tokens.requires_grad_(False)
    example.model.model.layers[:2].requires_grad_(False)
    return example


def gpt2() -> TrainingExample:
    """Head and embedding are tied; has dropout."""
    sizes = {"n_embd": 32, "n_layer": 4, "n_head": 4, "vocab_size": 160, "n_positions": 64}
    return build(model_type="gpt2", bos_token_id=0, eos_token_id=0, **sizes)


def qwen3_moe() -> TrainingExample:
    return build(
        model_type="qwen3_moe",
        moe_intermediate_size=32,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        **_DECODER,
    )


def vit() -> TrainingExample:
    return build(
        model_type="vit",
        image_size=32,
        patch_size=16,
        num_labels=8,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
    )


def t5() -> TrainingExample:
    """Encoder and decoder; the first block of each makes the position biases of all; embeddings are tied."""
    return build(
        model_type="t5",
        vocab_size=160,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_heads=4,
        num_layers=3,
        num_decoder_layers=3,
    )


def whisper() -> TrainingExample:
    return build(
        model_type="whisper",
        vocab_size=160,
        d_model=32,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=20,
        num_mel_bins=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )


def albert() -> TrainingExample:
    """Two blocks, each of which runs twice."""
    return build(
        model_type="albert",
        vocab_size=160,
        embedding_size=16,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_hidden_groups=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )


def bert() -> TrainingExample:
    """Norms come after their sublayers; the masked head is tied to the embeddings."""
    return build(
        model_type="bert",
        vocab_size=160,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )


def gemma2() -> TrainingExample:
    """Sliding and full attention take turns, logits are capped, head and embedding are tied."""
    return build(model_type="gemma2", head_dim=8, sliding_window=8, **_DECODER)


def deepseek_v3() -> TrainingExample:
    """Latent attention; the first block is dense, the others have shared and routed experts."""
    return build(
        model_type="deepseek_v3",
        moe_intermediate_size=16,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        **(_DECODER | {"num_key_value_heads": 4}),
    )


def small_ladder() -> TrainingExample:
    """Hardly any activations: a buffer that lives one moment longer than predicted shows in the peak."""
    return ladder.build(num_blocks=4)


def llama_unused() -> TrainingExample:
    """Every second block has a projection that nothing uses."""
    example = llama()
    for layer in example.model.model.layers[::2]:
        layer.mlp.unused = nn.Linear(32, 16, bias=False)
    return example


class LowRank(nn.Module):
    """A frozen projection with a trainable low-rank addition."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in_features)` to `(..., out_features)`."""
        result: Tensor = self.frozen(x) + self.up(self.down(x))
        return result


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """A builder of this file with the paths of its parts."""

    build: Callable[[], TrainingExample]
    blocks: tuple[str, ...]
    """Paths of the blocks, in forward order."""
    embedding: str = ""
    """Where it may be a unit of its own."""
    tail: tuple[str, ...] = ()
    """Norm and head, where they may be a unit of their own."""
    inside: tuple[str, ...] = ()
    """Modules of every block that may be units of their own, in forward order."""
    num_frozen: int = 0
    """First blocks without a backward."""
    needs_bfloat16: bool = False
    is_repeated: bool = False
    """Its blocks run several times."""
    returns_encoding: bool = False
    """It returns the encoder's output too."""
    sequence: int = 16


def _numbered(path: str, num: int) -> tuple[str, ...]:
    return tuple(f"{path}.{index}" for index in range(num))


_LLAMA_PARTS: dict[str, Any] = {
    "blocks": _numbered("model.layers", 4),
    "embedding": "model.embed_tokens",
    "tail": ("model.norm", "lm_head"),
    "inside": ("self_attn", "mlp"),
}
MODELS = {
    "llama": SmallModel(build=llama, **_LLAMA_PARTS),
    "llama-lora": SmallModel(build=llama_lora, **_LLAMA_PARTS),
    "llama-half-frozen": SmallModel(build=llama_half_frozen, num_frozen=2, **_LLAMA_PARTS),
    "llama-unused": SmallModel(build=llama_unused, **_LLAMA_PARTS),
    "qwen3-moe": SmallModel(build=qwen3_moe, needs_bfloat16=True, **_LLAMA_PARTS),
    "gpt2": SmallModel(build=gpt2, blocks=_numbered("transformer.h", 4), inside=("attn", "mlp")),
    "vit": SmallModel(
        build=vit,
        blocks=_numbered("vit.layers", 4),
        tail=("vit.layernorm", "classifier"),
        inside=("attention", "mlp"),
    ),
    "t5": SmallModel(
        build=t5,
        blocks=(*_numbered("encoder.block", 3), *_numbered("decoder.block", 3)),
        inside=("layer.0", "layer.1"),
        returns_encoding=True,
    ),
    "whisper": SmallModel(
        build=whisper,
        blocks=(*_numbered("model.encoder.layers", 3), *_numbered("model.decoder.layers", 3)),
        inside=("self_attn", "fc1"),
        returns_encoding=True,
    ),
    "ladder": SmallModel(build=small_ladder, blocks=_numbered("layers", 4), embedding="embedding", tail=("head",)),
    "albert": SmallModel(build=albert, blocks=_numbered("albert.encoder.albert_layer_groups", 2), is_repeated=True),
    "bert": SmallModel(build=bert, blocks=_numbered("bert.encoder.layer", 4)),
    "gemma2": SmallModel(build=gemma2, blocks=_numbered("model.layers", 4), inside=("self_attn", "mlp")),
    "deepseek-v3": SmallModel(build=deepseek_v3, needs_bfloat16=True, **_LLAMA_PARTS),
}
FURTHER = ("bert", "gemma2", "deepseek-v3")
"""Those that not every pair of knob values is tried with."""
