"""Reads what a module registers, then makes its parameters ready to be traced: cast, and no longer tied."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.utils import _apply_to_tensors
from torch.utils._pytree import tree_map_only

from planner.schema.base import DType
from planner.schema.model import Module, Parameter
from runtime_client.describe.errors import NoParameters, ScalarParameter
from runtime_client.describe.example import Inputs
from runtime_client.describe.frontier import FrontierModule
from runtime_client.fingerprint import element_type, iter_parameters, storage_key

_CHECKPOINT_CHILD = "_checkpoint_wrapped_module"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredParameters:
    """The parameters of a model by frontier module, equal sets stored once."""

    modules: tuple[Module, ...]
    parameter_sets: dict[str, tuple[Parameter, ...]]


def unwrap_checkpoints(root: nn.Module) -> None:
    """Take checkpoint wrappers off: activation policies are the plan's to choose."""
    for parent in list(root.modules()):
        for name, child in parent._modules.items():
            if child is not None and _CHECKPOINT_CHILD in child._modules:
                parent._modules[name] = child._modules[_CHECKPOINT_CHILD]


def read_parameters(
    root: nn.Module, frontier: tuple[FrontierModule, ...], set_names: dict[str, str]
) -> RegisteredParameters:
    """List the parameters of each frontier module, as stored.

    Args:
        root: the model.
        frontier: its frontier modules.
        set_names: wished name of the parameter set by module path.

    Raises:
        NoParameters: there is none, or none requires grad.
        ScalarParameter: one has no dimension.
    """
    paths = {item.path for item in frontier}
    first: dict[tuple[object, ...], str] = {}
    by_module: dict[str, list[Parameter]] = {}
    for name, parameter in iter_parameters(root):
        if parameter.dim() == 0:
            raise ScalarParameter(name)
        tied_to = first.setdefault(storage_key(parameter), name)
        path = _owner(name, paths)
        by_module.setdefault(path, []).append(
            Parameter(
                name=name.removeprefix(f"{path}.") if path else name,
                shape=tuple(parameter.shape),
                dtype=element_type(name, parameter.dtype),
                requires_grad=parameter.requires_grad,
                tied_to=None if tied_to == name else tied_to,
                contiguous=parameter.is_contiguous(),
            )
        )
    _refuse_nothing_to_train(by_module)
    return _deduplicated(by_module, set_names)


def buffers_bytes(root: nn.Module) -> int:
    """Bytes of all registered buffers."""
    return distinct_bytes(root.buffers())


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind tensors, each once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def prepare_parameters(root: nn.Module, param_dtype: DType | None) -> None:
    """Give every registration a parameter of its own in `param_dtype`, with its `requires_grad`.

    Ties are cut because autograd would hold the first gradient of a tied parameter back until the last is
    there; apart, each shows at the call that makes it.
    """
    dtype = None if param_dtype is None else getattr(torch, param_dtype)
    for module in root.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            cast = dtype if dtype is not None and parameter.is_floating_point() else parameter.dtype
            fresh = torch.empty_strided(parameter.shape, parameter.stride(), dtype=cast, device=parameter.device)
            setattr(module, name, nn.Parameter(fresh, requires_grad=parameter.requires_grad))


def cast_inputs(inputs: Inputs, param_dtype: DType | None) -> Inputs:
    """Floating tensor inputs in `param_dtype`, as mixed precision hands them to the module."""
    if param_dtype is None:
        return inputs
    dtype: torch.dtype = getattr(torch, param_dtype)
    cast: Inputs = tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, inputs
    )
    return cast


def cast_output(output: Any, dtype: DType) -> Any:  # noqa: ANN401 - whatever the model returns
    """Floating tensors of what a model returns in `dtype`, as FSDP2 finds them."""
    wanted: torch.dtype = getattr(torch, dtype)
    return _apply_to_tensors(lambda tensor: tensor.to(wanted) if tensor.is_floating_point() else tensor, output)


def _owner(name: str, paths: set[str]) -> str:
    path = name.rpartition(".")[0]
    while path not in paths:
        path = path.rpartition(".")[0]
    return path


def _refuse_nothing_to_train(by_module: dict[str, list[Parameter]]) -> None:
    parameters = [parameter for listed in by_module.values() for parameter in listed]
    if not parameters:
        raise NoParameters("the module has no parameters: there is nothing to shard")
    if not any(parameter.requires_grad for parameter in parameters):
        raise NoParameters("no parameter requires grad: there is nothing to train; unfreeze some of them")


def _deduplicated(by_module: dict[str, list[Parameter]], set_names: dict[str, str]) -> RegisteredParameters:
    names: dict[tuple[Parameter, ...], str] = {}
    taken: set[str] = set()
    modules = []
    for path, listed in by_module.items():
        parameters = tuple(listed)
        if parameters not in names:
            names[parameters] = unused_name(set_names[path], taken)
        modules.append(Module(path=path, parameters=names[parameters]))
    return RegisteredParameters(
        modules=tuple(modules), parameter_sets={name: parameters for parameters, name in names.items()}
    )


def unused_name(wished: str, taken: set[str]) -> str:
    """`wished`, or `wished_1`, `wished_2`, ... where it is taken already; the result is then taken too."""
    name, number = wished, 0
    while name in taken:
        number += 1
        name = f"{wished}_{number}"
    taken.add(name)
    return name
