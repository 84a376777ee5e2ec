"""Models of any depth, made from shipped descriptions by repeating a block."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.schema import ModelDescription

ROOT = Path(__file__).parents[1]
LLAMA_405B_WIDTHS: Mapping[int, int] = {8_192: 16_384, 28_672: 53_248}
"""From Llama 3 70B to 405B; both have 8 heads of 128 for keys and values."""


def deep_model(source: str, num_blocks: int, *, widths: Mapping[int, int] | None = None) -> ModelDescription:
    """A shipped model with so many blocks, all like its second one but the first.

    Args:
        source: name of a file in examples/models.
        num_blocks: blocks.
        widths: sizes in parameter shapes to replace; activations stay as they are.
    """
    document: dict[str, Any] = json.loads((ROOT / "examples" / "models" / f"{source}.json").read_text())
    last = shift = 0
    for field in ("modules", "calls"):
        items = document[field]
        places = [index for index, item in enumerate(items) if item["path"].startswith("model.layers.")]
        first, last = places[0], places[-1]
        blocks = [
            items[first + min(number, 1)] | {"path": f"model.layers.{number}"} for number in range(num_blocks)
        ]
        document[field] = items[:first] + blocks + items[last + 1 :]
        shift = num_blocks - len(places)
    for tensor in document["shared"]:
        for field in {"last_call", "held_until"} & tensor.keys():
            tensor[field] += shift if tensor[field] >= last else 0
    for parameters in document["parameter_sets"].values():
        for parameter in parameters:
            parameter["shape"] = [(widths or {}).get(size, size) for size in parameter["shape"]]
    return ModelDescription.from_object(document | {"name": f"{source}-{num_blocks}-blocks"})


def llama_405b(num_blocks: int) -> ModelDescription:
    """The shipped Llama 3 70B with the parameters of 405B and so many blocks; its activations stay as they are."""
    model = deep_model("llama-3-70b", num_blocks, widths=LLAMA_405B_WIDTHS)
    return model.model_copy(update={"name": f"llama-3-405b-like-{num_blocks}"})
