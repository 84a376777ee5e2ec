"""Checks of a live model against a plan. Nothing here changes the model."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import nn
from torch.distributed._composable.contract import _get_registry
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from runtime_client.apply.modules import find_module
from runtime_client.apply.units import Unit
from runtime_client.errors import (
    AlreadySharded,
    FingerprintMismatch,
    MixedStorageDTypes,
    NonContiguousParameter,
    ScalarParameter,
    ScriptedModule,
    TiedParameterSplit,
    UninitializedParameter,
)
from runtime_client.fingerprint import fingerprint, iter_parameters, unwrapped_name

_PARALLELISMS = ("replicate", "fsdp")
"""Composable APIs of torch that take parameters away from `fully_shard`."""


def check_not_sharded(model: nn.Module) -> None:
    """Refuse a model whose parameters belong to other ranks already, or that cannot be looked at as it is.

    Raises:
        AlreadySharded: it went through `fully_shard` or another data parallelism, or has DTensor parameters.
        ScriptedModule, UninitializedParameter: `fully_shard` would crash on it.
    """
    for name, module in model.named_modules():
        way = _other_parallelism(module)
        if way is not None:
            raise AlreadySharded(
                f"module {unwrapped_name(name)!r} went through {way} before. Apply a plan once, to a fresh "
                "model, and build the optimizer afterwards."
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise ScriptedModule(
                f"module {unwrapped_name(name)!r} is a TorchScript module, which takes no hooks. Apply the plan to "
                "the module that was scripted."
            )
    for name, parameter in iter_parameters(model):
        if isinstance(parameter, DTensor):
            raise AlreadySharded(
                f"parameter {name!r} is a DTensor already; plans over other parallelisms cannot be applied. Apply "
                "the plan to the model before any other sharding."
            )
        if is_lazy(parameter):
            raise UninitializedParameter(
                f"parameter {name!r} has no shape yet. Run the lazy modules once, or give them their input sizes."
            )


def _other_parallelism(module: nn.Module) -> str | None:
    if isinstance(module, FSDPModule):
        return "fully_shard"
    for wrapper in (FullyShardedDataParallel, DistributedDataParallel):
        if isinstance(module, wrapper):
            return wrapper.__name__
    applied = _get_registry(module) or {}
    return next((name for name in applied if name in _PARALLELISMS), None)


def check_fingerprint(model: nn.Module, planned: str) -> None:
    """The model must be the one that was described."""
    found = fingerprint(model)
    if found != planned:
        raise FingerprintMismatch(
            f"model_fingerprint is {planned}, but this model is {found}: names, shapes, element "
            "types, requires_grad, ties or module classes differ from the model that was described. Describe this "
            "model and plan again."
        )


def check_parameters(model: nn.Module, units: list[Unit]) -> None:
    """What `fully_shard` would crash on, or quietly get wrong, once the model is half sharded."""
    _check_shared_modules(model, units)
    _check_ties(units)
    for unit in units:
        _check_storage_dtypes(unit)
    for unit in units:
        _check_shapes(unit)


def _check_shared_modules(model: nn.Module, units: list[Unit]) -> None:
    """A module inside two units that is no unit itself: the second `fully_shard` meets shards of the first."""
    heads = {path: find_module(model, path, where=unit.where) for unit in units for path in unit.plan.modules}
    listed = {id(head) for head in heads.values()}
    owner: dict[int, tuple[str, Unit]] = {}
    for unit in units:
        for path in unit.plan.modules:
            for name, module in _walk(heads[path], path, listed):
                first_name, first_unit = owner.setdefault(id(module), (name, unit))
                if first_unit is not unit and any(True for _ in module.parameters(recurse=False)):
                    raise TiedParameterSplit(
                        f"{unit.where}: module {unwrapped_name(name)!r} is {unwrapped_name(first_name)!r} of "
                        f"{first_unit.where}. Make it a unit of its own, before both."
                    )


def _walk(module: nn.Module, path: str, listed: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """What `fully_shard` of a module takes: all below it up to modules that are units themselves."""
    yield path, module
    for name, child in module.named_children():
        if id(child) not in listed:
            yield from _walk(child, f"{path}.{name}" if path else name, listed)


def _check_ties(units: list[Unit]) -> None:
    owner: dict[int, tuple[str, Unit]] = {}
    storages: dict[int, dict[int, tuple[str, nn.Parameter]]] = {}
    for unit in units:
        for name, parameter in unit.parameters:
            first_name, first_unit = owner.setdefault(id(parameter), (name, unit))
            if first_unit is not unit:
                raise TiedParameterSplit(
                    f"{unit.where}: parameter {name!r} is tied to {first_name!r} of {first_unit.where}. Put both "
                    "modules into one unit (fully_shard of a list), or leave both to the root."
                )
            if parameter.numel():
                same = storages.setdefault(parameter.untyped_storage()._cdata, {})
                same[id(parameter)] = (name, parameter)
    for parameters in storages.values():
        _check_overlap(list(parameters.values()))


def _check_overlap(parameters: list[tuple[str, nn.Parameter]]) -> None:
    """Parameters of one storage must lie side by side."""
    by_start = sorted((_bytes(parameter), name) for name, parameter in parameters)
    for ((_, end), name), ((start, _), other) in pairwise(by_start):
        if start < end:
            raise TiedParameterSplit(
                f"parameters {name!r} and {other!r} share their storage but are two Parameter objects, so sharding "
                "would separate them. Assign the same object to both, or copy one of them (clone)."
            )


def _bytes(parameter: nn.Parameter) -> tuple[int, int]:
    """First byte of its storage that a parameter covers, and the one after the last."""
    size = parameter.element_size()
    start = int(parameter.storage_offset()) * size
    spans = ((length - 1) * stride for length, stride in zip(parameter.shape, parameter.stride(), strict=True))
    return start, start + int(sum(spans) + 1) * size


def _check_storage_dtypes(unit: Unit) -> None:
    first: dict[str, str] = {}
    for name, parameter in unit.parameters:
        if parameter.requires_grad:
            first.setdefault(str(parameter.dtype), name)
    if len(first) > 1:
        shown = ", ".join(f"{dtype} ({name})" for dtype, name in first.items())
        raise MixedStorageDTypes(
            f"{unit.where}: trainable parameters of {list(unit.plan.modules)} are stored as {shown}. Store them "
            "in one element type, or give the odd ones a unit of their own."
        )


def _check_shapes(unit: Unit) -> None:
    for name, parameter in unit.parameters:
        if parameter.ndim == 0:
            raise ScalarParameter(
                f"{unit.where}: parameter {name!r} has no dimensions and cannot be sharded. Give it the shape (1,)."
            )
        if not parameter.is_contiguous():
            raise NonContiguousParameter(
                f"{unit.where}: parameter {name!r} has strides {tuple(parameter.stride())} and is not contiguous. "
                f"Replace it by nn.Parameter({name}.detach().contiguous())."
            )
