"""A hand-made model whose blocks have parts, and parts of parts.

`layers.0` to `layers.2`, `head` and `(loss)`. A block is `attention`, code of its own and `mlp`, which is `gate`
and `experts`.
"""

from typing import Any

from planner.schema import (
    LOSS_PATH,
    Call,
    CallKind,
    CallRole,
    ModelDescription,
    Module,
    Parameter,
    Polynomial,
    SharedTensor,
)
from tests.planner.factories import TREE, CallSpec, call_kind

ATTENTION = CallSpec(saved=10, full_saved=1, kernels=(4, 8, 4), flops=4)
GLUE = CallSpec(saved=2, kernels=(1, 2, 1), flops=1)
GATE = CallSpec(saved=3, full_saved=1, kernels=(1, 2, 1), flops=2)
EXPERTS = CallSpec(saved=20, full_saved=1, kernels=(3, 6, 3), flops=9)
MLP = CallSpec(saved=23, full_saved=1, kernels=(4, 8, 4), flops=11)
BLOCK = CallSpec(saved=35, full_saved=1, kernels=(9, 18, 9), flops=16)
WEIGHTS = ("attention.w", "mlp.gate.w", "mlp.experts.w")
SHARED = (
    SharedTensor(size_bytes=Polynomial(one=7), first_call=0, last_call=2),
    SharedTensor(size_bytes=Polynomial(one=5), first_call=1, last_call=3),
)


def split_model(**kinds: CallKind) -> ModelDescription:
    """The model, with some kinds replaced."""
    weights = tuple(Parameter(name=name, shape=(4, 4)) for name in WEIGHTS)
    blocks = [f"layers.{index}" for index in range(3)]
    calls = [Call(path=path, kind="block") for path in blocks]
    calls += [Call(path="head", kind="head"), Call(path=LOSS_PATH, kind="loss")]
    return ModelDescription(
        name="split",
        parameter_sets={"block": weights, "head": (Parameter(name="w", shape=(4, 4)),)},
        modules=(
            *(Module(path=path, parameters="block") for path in blocks),
            Module(path="head", parameters="head"),
        ),
        kinds=default_kinds() | kinds,
        calls=tuple(calls),
        shared=SHARED,
        tree_sha256=TREE,
    )


def default_kinds() -> dict[str, CallKind]:
    """Kinds of all calls and parts."""
    return {
        "block": _kind(
            BLOCK,
            CallRole.BLOCK,
            gradient_order=tuple(reversed(WEIGHTS)),
            parts=(
                Call(path="attention", kind="attention"),
                Call(path="", kind="glue"),
                Call(path="mlp", kind="mlp"),
            ),
        ),
        "attention": _kind(ATTENTION, gradient_order=("w",)),
        "glue": _kind(GLUE, CallRole.GLUE),
        "mlp": _kind(
            MLP,
            gradient_order=("experts.w", "gate.w"),
            parts=(Call(path="gate", kind="gate"), Call(path="experts", kind="experts")),
        ),
        "gate": _kind(GATE, gradient_order=("w",)),
        "experts": _kind(EXPERTS, gradient_order=("w",)),
        "head": _kind(CallSpec(), CallRole.HEAD, gradient_order=("w",)),
        "loss": _kind(CallSpec(), CallRole.LOSS),
    }


def _kind(spec: CallSpec, role: CallRole = CallRole.OTHER, **changes: Any) -> CallKind:
    return call_kind(spec, role).model_copy(update=changes)
