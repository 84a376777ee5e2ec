"""Checks of a live model against a plan. Nothing here changes the model."""

import torch
from torch import nn
from torch.distributed._composable.contract import _get_registry
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

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
from runtime_client.fingerprint import fingerprint, iter_parameters, storage_key, unwrapped_name

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


def check_parameters(units: list[Unit]) -> None:
    """What `fully_shard` would crash on, or quietly get wrong, once the model is half sharded."""
    _check_ties(units)
    for unit in units:
        _check_storage_dtypes(unit)
    for unit in units:
        _check_shapes(unit)


def _check_ties(units: list[Unit]) -> None:
    owner: dict[int, tuple[str, Unit]] = {}
    storage: dict[tuple[object, ...], tuple[str, nn.Parameter]] = {}
    for unit in units:
        for name, parameter in unit.parameters:
            first_name, first_unit = owner.setdefault(id(parameter), (name, unit))
            if first_unit is not unit:
                raise TiedParameterSplit(
                    f"{unit.where}: parameter {name!r} is tied to {first_name!r} of {first_unit.where}. Put both "
                    "modules into one unit (fully_shard of a list), or leave both to the root."
                )
            if not parameter.numel():
                continue
            twin_name, twin = storage.setdefault(storage_key(parameter), (name, parameter))
            if twin is not parameter:
                raise TiedParameterSplit(
                    f"{unit.where}: parameters {twin_name!r} and {name!r} share their storage but are two "
                    "Parameter objects, so sharding would separate them. Assign the same object to both."
                )


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
