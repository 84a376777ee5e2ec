"""Fingerprint of a live module: names, shapes, dtypes, grads, ties and tree, without running it.

Equal to `ModelDescription.fingerprint` for the module that was described, whatever device its parameters are on,
and with or without checkpoint wrappers, `torch.compile` wrappers and `fully_shard` around its parts.
"""

import hashlib
from collections.abc import Iterator

import torch
from torch import nn

from planner.schema.base import DType
from planner.schema.errors import ShardwrightError
from planner.schema.model import fingerprint_of, parameter_line

_WRAPPED_CHILDREN = ("_checkpoint_wrapped_module", "_orig_mod")
_FSDP_MIXIN = "FSDPModule"


class UnknownElementType(ShardwrightError):
    """A parameter whose element type the contract does not know."""

    code = "unknown_element_type"

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        super().__init__(f"parameter {name!r} has element type {dtype}; known: {', '.join(DType)}")


def fingerprint(module: nn.Module) -> str:
    """`sha256:...` of the module as it would be handed to `fully_shard`.

    Raises:
        UnknownElementType: a parameter has an element type outside the contract.
    """
    return fingerprint_of(parameter_lines(module), tree_sha256(module))


def parameter_lines(module: nn.Module) -> list[str]:
    """One line for each registered parameter, tied ones included, in registration order."""
    first: dict[tuple[object, ...], str] = {}
    lines = []
    for name, parameter in iter_parameters(module):
        tied_to = first.setdefault(storage_key(parameter), name)
        lines.append(
            parameter_line(
                name,
                tuple(parameter.shape),
                element_type(name, parameter.dtype),
                parameter.requires_grad,
                None if tied_to == name else tied_to,
            )
        )
    return lines


def tree_sha256(module: nn.Module) -> str:
    """`sha256:...` of the `path:ClassName` lines of all modules, wrappers left out."""
    lines = [
        f"{unwrapped_name(path)}:{_class_name(child)}"
        for path, child in module.named_modules(remove_duplicate=False)
        if not _is_wrapper(child)
    ]
    return f"sha256:{hashlib.sha256(chr(10).join(sorted(lines)).encode()).hexdigest()}"


def iter_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """`(name without wrapper prefixes, parameter)`, tied parameters under each of their names."""
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield unwrapped_name(name), parameter


def storage_key(parameter: torch.Tensor) -> tuple[object, ...]:
    """Equal for two live parameters exactly when they are the same elements of the same storage."""
    local = getattr(parameter, "_local_tensor", parameter)
    return (
        local.untyped_storage()._cdata,
        local.storage_offset(),
        tuple(local.shape),
        local.stride(),
    )


def element_type(name: str, dtype: torch.dtype) -> DType:
    """The contract's name of a torch element type.

    Raises:
        UnknownElementType: the contract has no such type.
    """
    try:
        return DType(str(dtype).removeprefix("torch."))
    except ValueError:
        raise UnknownElementType(name, dtype) from None


def unwrapped_name(name: str) -> str:
    """A dotted name without the steps that checkpoint and compile wrappers add."""
    return ".".join(step for step in name.split(".") if step not in _WRAPPED_CHILDREN)


def _is_wrapper(module: nn.Module) -> bool:
    return any(child in module._modules for child in _WRAPPED_CHILDREN)


def _class_name(module: nn.Module) -> str:
    bases = type(module).__bases__
    if bases[0].__name__ == _FSDP_MIXIN and len(bases) > 1:
        return bases[1].__name__
    return type(module).__name__
