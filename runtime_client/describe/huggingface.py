"""Training examples of transformers models, from a configuration alone: nothing is downloaded."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from runtime_client.describe.errors import NoTarget
from runtime_client.describe.example import Inputs, TrainingExample

_ENCODER_DECODERS = ("AutoModelForSpeechSeq2Seq", "AutoModelForSeq2SeqLM")
_OTHERS = ("AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForImageClassification")


def from_hf_config(config: str | Path | Mapping[str, Any]) -> Callable[[], TrainingExample]:
    """A builder for the model of a transformers configuration.

    Attention runs in `sdpa` and experts in `grouped_mm` wherever the model has them (transformers' own choice
    unless the configuration names another), without a cache of keys and values. The model class is the one named in
    `architectures`, else the first of masked, causal or image (speech, sequence to sequence for encoder-decoders)
    that the configuration has.

    Args:
        config: the content of a `config.json`, its path, or the path of its folder. `model_type` is required.

    Raises:
        NoTarget: the file cannot be read, names no known model type or no model that can be trained here.
    """
    fields = dict(config) if isinstance(config, Mapping) else _read(Path(config))
    return lambda: _build(fields)


def _read(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        fields = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise NoTarget(f"{file} is no readable configuration: {error}") from error
    if not isinstance(fields, dict):
        raise NoTarget(f"{file} holds no JSON object")
    return fields


def _build(fields: Mapping[str, Any]) -> TrainingExample:
    import transformers

    model_type = fields.get("model_type")
    if model_type not in transformers.CONFIG_MAPPING:
        raise NoTarget(f"model_type {model_type!r} is unknown to transformers {transformers.__version__}")
    config = transformers.AutoConfig.for_model(**fields)
    config.use_cache = False
    auto_class = _auto_class(config, fields.get("architectures"))
    model = getattr(transformers, auto_class).from_config(config)
    return TrainingExample(model=model, inputs=_inputs(auto_class, config))


def _auto_class(config: Any, architectures: Any) -> str:  # noqa: ANN401 - transformers has no types
    import transformers

    names = _ENCODER_DECODERS if getattr(config, "is_encoder_decoder", False) else _OTHERS
    known = {
        name: mapping[type(config)]
        for name in names
        if type(config) in (mapping := getattr(transformers, name)._model_mapping)
    }
    for name, model_class in known.items():
        classes = model_class if isinstance(model_class, (list, tuple)) else (model_class,)
        if any(item.__name__ in (architectures or ()) for item in classes):
            return name
    if not known:
        raise NoTarget(
            f"transformers has no language, image or speech model for {type(config).__name__}: write a builder "
            "that returns a TrainingExample and name it as pkg.module:build"
        )
    return next(iter(known))


def _inputs(auto_class: str, config: Any) -> Callable[[int, int], Inputs]:  # noqa: ANN401
    def tokens(micro_batch: int, sequence: int) -> torch.Tensor:
        return torch.zeros(micro_batch, sequence, dtype=torch.long)

    def images(micro_batch: int, _: int) -> torch.Tensor:
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        return torch.zeros(micro_batch, config.num_channels, height, width)

    def speech(micro_batch: int, _: int) -> torch.Tensor:
        return torch.zeros(micro_batch, config.num_mel_bins, 2 * config.max_source_positions)

    makers: dict[str, dict[str, Callable[[int, int], torch.Tensor]]] = {
        "AutoModelForSpeechSeq2Seq": {"input_features": speech, "decoder_input_ids": tokens},
        "AutoModelForSeq2SeqLM": {"input_ids": tokens, "decoder_input_ids": tokens},
        "AutoModelForImageClassification": {"pixel_values": images},
    }
    chosen = makers.get(auto_class, {"input_ids": tokens})
    return lambda micro_batch, sequence: ((), {name: make(micro_batch, sequence) for name, make in chosen.items()})
