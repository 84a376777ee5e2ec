"""Checks of a live model against a plan. Nothing here changes the model."""

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, CheckpointWrapper
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from planner.schema import ActivationPolicy, Decisions, PlanBody
from runtime_client.apply.modules import find_module, inner_module, wrappers_of
from runtime_client.apply.units import Unit
from runtime_client.errors import (
    AlreadySharded,
    ConflictingCheckpointing,
    FingerprintMismatch,
    MixedStorageDTypes,
    NonContiguousParameter,
    ScalarParameter,
    TiedParameterSplit,
    UnsupportedPlan,
)
from runtime_client.fingerprint import fingerprint, iter_parameters, storage_key, unwrapped_name


def check_not_sharded(model: nn.Module) -> None:
    """Refuse a model that went through `fully_shard`, or has DTensor parameters from elsewhere."""
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            raise AlreadySharded(
                f"module {unwrapped_name(name)!r} went through fully_shard before. Apply a plan once, to a fresh "
                "model, and build the optimizer afterwards."
            )
    for name, parameter in iter_parameters(model):
        if isinstance(parameter, DTensor):
            raise AlreadySharded(
                f"parameter {name!r} is a DTensor already; plans over other parallelisms cannot be applied. Apply "
                "the plan to the model before any other sharding."
            )


def check_fingerprint(model: nn.Module, body: PlanBody) -> None:
    """The model must be the one that was described."""
    found = fingerprint(model)
    if found != body.model_fingerprint:
        raise FingerprintMismatch(
            f"model_fingerprint is {body.model_fingerprint}, but this model is {found}: names, shapes, element "
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


def check_checkpointing(model: nn.Module, decisions: Decisions) -> None:
    """The plan alone decides about activations, so checkpointing that is already there must agree with it."""
    full: set[int] = set()
    for index, activation in enumerate(decisions.activations):
        where = f"decisions.activations[{index}].module"
        module = find_module(model, activation.module, where=where)
        if activation.policy is not ActivationPolicy.FULL:
            continue
        if not activation.module:
            raise UnsupportedPlan(f"{where}: the root cannot be checkpointed as a whole. List its blocks instead.")
        if type(inner_module(module)).forward is nn.Module.forward:
            raise UnsupportedPlan(f"{where}: {activation.module!r} has no forward. List its children instead.")
        full.add(id(inner_module(module)))
    for name, module in model.named_modules():
        _check_own_checkpointing(unwrapped_name(name), module, full)


def _check_own_checkpointing(name: str, module: nn.Module, full: set[int]) -> None:
    if getattr(module, "gradient_checkpointing", False) is True:
        raise ConflictingCheckpointing(
            f"module {name!r} has gradient_checkpointing switched on. Switch it off "
            "(gradient_checkpointing_disable()); the plan decides what to recompute."
        )
    if not isinstance(module, CheckpointWrapper):
        return
    if module.checkpoint_impl is not CheckpointImpl.NO_REENTRANT:
        raise ConflictingCheckpointing(
            f"module {name!r} is checkpointed with the reentrant variant; remove its wrapper."
        )
    if id(inner_module(module)) not in full:
        raise ConflictingCheckpointing(
            f"module {name!r} is wrapped in a checkpoint, but the plan keeps its activations. Remove the wrapper; "
            "the plan decides what to recompute."
        )


def is_checkpointed(module: nn.Module) -> bool:
    """Whether a checkpoint wrapper is among the wrappers of a module."""
    return any(isinstance(wrapper, CheckpointWrapper) for wrapper in wrappers_of(module))


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
