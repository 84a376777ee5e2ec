"""`script`: a plan as the source of a Python module that needs torch alone."""

import json
import re
from collections.abc import Iterator

from planner.catalog.fused_attention import FUSED_ATTENTION, is_fused_attention
from planner.schema import (
    ActivationPolicy,
    Decisions,
    DType,
    GradientSync,
    InconsistentRequest,
    PlanBody,
    StateTier,
    UnitPlan,
)
from planner.script.loops import Path, Statement, in_loops

_INDENT = "    "
_OPERATION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


def script(body: PlanBody) -> str:
    """Source of a module that carries a plan out, with a docstring that says which; see `calls`.

    It does what `runtime_client.apply.apply_plan` does after its checks: the model has to be the one that was
    described, in as many ranks as the plan says.

    Raises:
        InconsistentRequest: the plan has no decisions, or some that torch alone does not carry out.
    """
    if body.decisions is None:
        raise InconsistentRequest(f"plan {body.name!r} is infeasible; there is nothing to carry out")
    source = calls(body.decisions)
    return "\n".join((*_head(body, body.decisions), "", source))


def calls(decisions: Decisions) -> str:
    """Source with `shard(model, device_type)` and, where the decisions need them, functions for the step.

    Raises:
        InconsistentRequest: torch alone does not carry the decisions out.
    """
    _refuse_what_torch_lacks(decisions)
    functions = (
        _function("shard(model, device_type)", _shard(decisions)),
        _function("begin_micro_batch(model, index)", _micro_batch(decisions)),
        _function("after_optimizer_step(model, device_type)", _optimizer_step(decisions)),
    )
    return "\n\n\n".join(("\n".join(_imports(decisions)), *filter(None, functions))) + "\n"


def _refuse_what_torch_lacks(decisions: Decisions) -> None:
    offloads = any(activation.policy is ActivationPolicy.OFFLOAD for activation in decisions.activations)
    lacking = [
        words
        for words, used in (
            ("ragged layouts", decisions.layouts),
            ("offloaded activations", offloads),
            ("shards on other dimensions", decisions.shard_dims),
            ("owners of Muon's matrices", decisions.owners),
            ("methods of modules that are no units", list(_methods_of_no_unit(decisions))),
            (
                "optimizer state off the device",
                any(unit.optimizer_tier is not unit.parameter_tier for unit in decisions.units),
            ),
        )
        if used
    ]
    if lacking:
        raise InconsistentRequest(
            f"torch alone does not carry out {', '.join(lacking)}; apply the plan with "
            "runtime_client.apply.apply_plan, or plan without these client_features"
        )


def _methods_of_no_unit(decisions: Decisions) -> Iterator[str]:
    units = {path for unit in decisions.units for path in unit.modules}
    yield from (name for name in decisions.forward_methods if name.rpartition(".")[0] not in units)


def _head(body: PlanBody, decisions: Decisions) -> Iterator[str]:
    yield f'"""Shards a model over {body.world_size} ranks.'
    yield ""
    yield f"From plan {body.content_hash()}"
    yield f"of the model with fingerprint {body.model_fingerprint}."
    yield f"Needs torch {body.requires.torch}. Build the optimizer after `shard`."
    sequences = f"{decisions.micro_batch} sequence{'s' * (decisions.micro_batch > 1)}"
    batches = f"{decisions.num_micro_batches} micro-batch{'es' * (decisions.num_micro_batches > 1)}"
    yield f"A step has {batches} of {sequences} per rank."
    if decisions.optimizer_implementation:
        yield f"Adam and AdamW step {decisions.optimizer_implementation!r}."
    yield '"""'


def _imports(decisions: Decisions) -> Iterator[str]:
    policies = {activation.policy for activation in decisions.activations} - {ActivationPolicy.NONE}
    if ActivationPolicy.SELECTIVE in policies:
        yield "from functools import partial"
        yield ""
    yield "import torch"
    if policies:
        yield "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper"
    yield "from torch.distributed.device_mesh import init_device_mesh"
    offloads = any(unit.parameter_tier is StateTier.HOST for unit in decisions.units)
    names = [*(["CPUOffloadPolicy"] if offloads else []), "MixedPrecisionPolicy", "fully_shard"]
    if decisions.forward_methods:
        names.append("register_fsdp_forward_method")
    yield f"from torch.distributed.fsdp import {', '.join(names)}"
    if ActivationPolicy.SELECTIVE in policies:
        yield "from torch.utils.checkpoint import create_selective_checkpoint_contexts"


def _function(signature: str, lines: Iterator[str]) -> str:
    body = [f"{_INDENT}{line}" for line in lines]
    return "\n".join((f"def {signature}:", *body)) if body else ""


def _shard(decisions: Decisions) -> Iterator[str]:
    yield '"""Shard `model` in place; call it on every rank."""'
    yield "at = model.get_submodule"
    for number, mesh in enumerate(decisions.meshes):
        sizes, names = (
            (f"({mesh.shard},)", '("shard",)')
            if mesh.replicate == 1
            else (f"({mesh.replicate}, {mesh.shard})", '("replicate", "shard")')
        )
        yield f"{_mesh(number)} = init_device_mesh(device_type, {sizes}, mesh_dim_names={names})"
    yield f"policy = {_policy(decisions)}"
    if decisions.output_dtype is not None:
        yield f"root_policy = {_policy(decisions, decisions.output_dtype)}"
    yield from in_loops(list(_activations(decisions)))
    yield from in_loops([_unit(unit, decisions) for unit in decisions.units])
    yield from in_loops(list(_prefetch(decisions)))
    yield from _knobs(decisions)
    for name in decisions.forward_methods:
        path, _, method = name.rpartition(".")
        module = f"at({json.dumps(path)})" if path else "model"
        yield f"register_fsdp_forward_method({module}, {json.dumps(method)})"
    yield "return model"


def _mesh(number: int) -> str:
    return f"mesh_{number}" if number else "mesh"


def _policy(decisions: Decisions, output_dtype: DType | None = None) -> str:
    dtypes = {
        "param_dtype": decisions.param_dtype,
        "reduce_dtype": decisions.reduce_dtype,
        "output_dtype": output_dtype,
    }
    words = [f"{name}=torch.{dtype}" for name, dtype in dtypes.items() if dtype is not None]
    if not decisions.cast_forward_inputs:
        words.append("cast_forward_inputs=False")
    return f"MixedPrecisionPolicy({', '.join(words)})"


def _activations(decisions: Decisions) -> Iterator[Statement]:
    """Inner modules first: a wrapper does not hold the children of what it wraps."""
    for activation in sorted(decisions.activations, key=lambda one: -one.module.count(".")):
        path = Path(activation.module)
        if activation.policy is ActivationPolicy.FULL:
            yield ("model.set_submodule(", path, ", checkpoint_wrapper(at(", path, ")))")
        elif activation.policy is ActivationPolicy.SELECTIVE:
            saved = ", ".join(f"torch.ops.{name}" for name in _kernels(activation.saved_ops))
            contexts = f"partial(create_selective_checkpoint_contexts, [{saved}])"
            yield ("model.set_submodule(", path, ", checkpoint_wrapper(at(", path, f"), context_fn={contexts}))")


def _kernels(saved_ops: tuple[str, ...]) -> Iterator[str]:
    """Overloads to keep; of fused attention the kernels of all devices."""
    for name in saved_ops:
        if not _OPERATION.fullmatch(name):
            raise InconsistentRequest(f"decisions.activations: saved_ops has {name!r}, which names no operation")
        full = name if name.count(".") > 1 else f"{name}.default"
        others = (f"aten.{kernel}.default" for kernel in FUSED_ATTENTION)
        yield from (full, *(other for other in others if other != full)) if is_fused_attention(full) else (full,)


def _unit(unit: UnitPlan, decisions: Decisions) -> Statement:
    is_root = unit.modules == ("",)
    modules = [part for path in unit.modules for part in (", ", *_at(path))][1:]
    if len(modules) > 3:
        modules = ["[", *modules, "]"]
    options = [f"mesh={_mesh(decisions.meshes.index(decisions.mesh_of(unit)))}"]
    if unit.reshard_after_forward is not None:
        options.append(f"reshard_after_forward={unit.reshard_after_forward}")
    options.append(f"mp_policy={'root_policy' if is_root and decisions.output_dtype is not None else 'policy'}")
    if unit.parameter_tier is StateTier.HOST:
        options.append('offload_policy=CPUOffloadPolicy(pin_memory=device_type != "cpu")')
    return ("fully_shard(", *modules, f", {', '.join(options)})")


def _at(path: str) -> Statement:
    return ("at(", Path(path), ")") if path else ("model",)


def _prefetch(decisions: Decisions) -> Iterator[Statement]:
    for unit in decisions.units:
        for way, targets in (("forward", unit.forward_prefetch), ("backward", unit.backward_prefetch)):
            if targets:
                listed = [part for path in targets for part in (", ", *_at(path))][1:]
                yield (*_at(unit.modules[0]), f".set_modules_to_{way}_prefetch([", *listed, "])")


def _knobs(decisions: Decisions) -> Iterator[str]:
    runtime = decisions.runtime
    if runtime.reduce_scatter_max_input_buffers > 1:
        yield f"model.set_reduce_scatter_max_input_buffers({runtime.reduce_scatter_max_input_buffers})"
    if runtime.separate_reduce_scatter_group:
        yield "model.set_separate_reduce_scatter_group(True)"
    if runtime.reduce_scatter_unused_params:
        yield "model.set_reduce_scatter_unused_params(True)"


def _micro_batch(decisions: Decisions) -> Iterator[str]:
    kept: list[Statement] = [
        (*_at(unit.modules[0]), ".set_reshard_after_backward(is_last, recurse=False)")
        for unit in decisions.units
        if not unit.reshard_after_backward
    ]
    sync = decisions.runtime.gradient_sync
    if not kept and sync is GradientSync.EVERY_MICRO_BATCH:
        return
    yield '"""Call it before the forward of each micro-batch of a step, counted from 0."""'
    yield f"is_last = index == {decisions.num_micro_batches - 1}"
    if sync is GradientSync.LAST_MICRO_BATCH:
        yield "model.set_requires_gradient_sync(is_last)"
    if sync is GradientSync.ALL_REDUCE_ON_LAST:
        yield "model.set_requires_all_reduce(is_last)"
    if kept:
        yield "at = model.get_submodule"
        yield from in_loops(kept)


def _optimizer_step(decisions: Decisions) -> Iterator[str]:
    if decisions.runtime.post_optimizer_event:
        yield '"""Call it right after the optimizer\'s step."""'
        yield "event = torch.get_device_module(device_type).Event()"
        yield "event.record()"
        yield "model.set_post_optim_event(event)"
