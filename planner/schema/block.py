"""Identity of what a call does: the same for equal blocks of two models, whatever they are called there."""

import hashlib
from typing import Any

import rfc8785

from planner.schema.model import CallRole, ModelDescription


def block_hash(model: ModelDescription, kind: str) -> str:
    """`sha256:...` of a kind: its role, parameters, regions, kernels and element type.

    What depends on micro-batch and sequence is left out, and so is what the model around a block keeps of it: two
    kinds that differ in these alone take the same time. Kinds without parameters (losses, position tables) count
    the bytes that each region moves for a token.

    Args:
        model: a description.
        kind: key of `model.kinds`.
    """
    described = model.kinds[kind]
    parameters = _parameters(model, kind)
    content: dict[str, Any] = {
        "role": described.role,
        "parameters": parameters,
        "regions": [[region.module, region.kind, region.dtype] for region in described.regions],
        "moved_bytes": [] if parameters else [float(region.forward.moved_bytes.bs) for region in described.regions],
        "kernels": list(described.kernels),
        "param_dtype": model.param_dtype,
    }
    return f"sha256:{hashlib.sha256(rfc8785.dumps(content)).hexdigest()}"


def _parameters(model: ModelDescription, kind: str) -> list[list[object]]:
    """Name, shape and whether it is trained, of all parameters that the first module of a kind registers."""
    path = next((call.path for call in model.calls if call.kind == kind), None)
    if path is None or model.kinds[kind].role in (CallRole.GLUE, CallRole.LOSS):
        return []
    sets = [module.parameters for module in model.modules if module.path == path]
    return [
        [parameter.name, list(parameter.shape), parameter.requires_grad]
        for name in sets
        for parameter in model.parameter_sets[name]
    ]
