"""Published architectures of tiny size, for the dry-run tests."""

from runtime_client.describe import TrainingExample, from_hf_config

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def gpt2() -> TrainingExample:
    """Has dropout."""
    sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
    return from_hf_config({"model_type": "gpt2"} | sizes)()


def vit() -> TrainingExample:
    """Has images, and an initialiser that reads values."""
    return from_hf_config({"model_type": "vit", "image_size": 32, "patch_size": 16, "num_labels": 8} | _SIZES)()
