"""Activation checkpointing of the modules that a plan lists."""

from functools import partial

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    checkpoint_wrapper,
)

from planner.schema import ActivationPlan, ActivationPolicy, Decisions
from runtime_client.apply.modules import find_module, inner_module, replace_module, wrappers_of
from runtime_client.errors import ConflictingCheckpointing, UnitInsideSelectiveCheckpoint, UnsupportedPlan
from runtime_client.fingerprint import unwrapped_name
from runtime_client.saved_ops import selective_contexts


def check_checkpointing(model: nn.Module, decisions: Decisions) -> None:
    """The plan alone decides about activations, so checkpointing that is already there must agree with it."""
    policies: dict[int, ActivationPolicy] = {}
    for index, activation in enumerate(decisions.activations):
        where = f"decisions.activations[{index}].module"
        module = inner_module(find_module(model, activation.module, where=where))
        if id(module) in policies:
            raise ConflictingCheckpointing(
                f"{where}: {activation.module!r} is listed twice. List each module once."
            )
        policies[id(module)] = activation.policy
        if activation.policy is ActivationPolicy.NONE:
            continue
        if not activation.module:
            raise UnsupportedPlan(f"{where}: the root takes no policy as a whole. List its blocks instead.")
        if type(module).forward is nn.Module.forward:
            raise UnsupportedPlan(f"{where}: {activation.module!r} has no forward. List its children instead.")
        if activation.policy is ActivationPolicy.SELECTIVE:
            _check_units_inside(activation, decisions, where)
    for name, module in model.named_modules():
        policy = policies.get(id(inner_module(module)), ActivationPolicy.NONE)
        _check_own_checkpointing(unwrapped_name(name), module, policy)


def _check_units_inside(activation: ActivationPlan, decisions: Decisions, where: str) -> None:
    """Torch counts the operations of the forward, and FSDP2 issues more of them where it runs a unit again."""
    for index, unit in enumerate(decisions.units):
        inside = [path for path in unit.modules if path.startswith(f"{activation.module}.")]
        if inside:
            raise UnitInsideSelectiveCheckpoint(
                f"{where}: {activation.module!r} is checkpointed selectively, but {inside[0]!r} inside it is a "
                f"module of decisions.units[{index}]. Checkpoint it in full, or make no units inside it."
            )


def _check_own_checkpointing(name: str, module: nn.Module, policy: ActivationPolicy) -> None:
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
    if policy is not ActivationPolicy.FULL:
        planned = "keeps its activations" if policy is ActivationPolicy.NONE else f"has policy {policy} for it"
        raise ConflictingCheckpointing(
            f"module {name!r} is wrapped in a checkpoint, but the plan {planned}. Remove the wrapper; "
            "the plan decides what to recompute."
        )
    if "context_fn" in module.checkpoint_fn.keywords:
        raise ConflictingCheckpointing(
            f"module {name!r} is wrapped in a selective checkpoint, but the plan recomputes all of it. Remove the "
            "wrapper; the plan decides what to recompute."
        )


def checkpoint(model: nn.Module, activation: ActivationPlan) -> None:
    """Wrap a module as its policy says, unless it is wrapped so already."""
    module = find_module(model, activation.module, where="decisions.activations")
    is_wrapped = any(isinstance(wrapper, CheckpointWrapper) for wrapper in wrappers_of(module))
    if activation.policy not in (ActivationPolicy.FULL, ActivationPolicy.SELECTIVE) or is_wrapped:
        return
    options = {}
    if activation.policy is ActivationPolicy.SELECTIVE:
        options["context_fn"] = partial(selective_contexts, activation.saved_ops)
    replace_module(model, module, checkpoint_wrapper(module, CheckpointImpl.NO_REENTRANT, **options))
