"""Selective checkpointing by a list of operations, as plans name it: `aten.mm.default`.

[Note: random operations] A recomputation starts from the state that the generator had before the forward. An
operation whose output was kept does not run again and draws nothing, so that each later one that does run draws
other numbers than in forward: its dropout mask changes and gradients are wrong, without any error. A list must name
all operations of a block that draw random numbers, attention with dropout among them, or none.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch._ops import OpOverload
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from planner.catalog.fused_attention import FUSED_ATTENTION, is_fused_attention
from planner.schema.errors import ShardwrightError


class UnknownOperation(ShardwrightError):
    """A plan names an operation that this torch does not have."""

    code = "unknown_operation"


def selective_contexts(
    saved_ops: Iterable[str],
) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Contexts of forward and recomputation (`context_fn` of a checkpoint) that keep the outputs of `saved_ops`.

    All outputs of such an operation are kept, needed or not, until the recomputation asks for them; those after the
    last tensor that backward needs, until the block's backward is over.

    Raises:
        UnknownOperation: as `resolve_saved_ops`.
    """
    forward, recompute = create_selective_checkpoint_contexts(resolve_saved_ops(saved_ops))  # type: ignore[no-untyped-call]
    return forward, recompute


def resolve_saved_ops(names: Iterable[str]) -> list[OpOverload]:
    """Operations by name. Fused attention means the kernel of every device: which one runs is the device's choice.

    Raises:
        UnknownOperation: a name is no operation of the installed torch; libraries must be imported first.
    """
    found: dict[OpOverload, None] = {}
    for name in names:
        found.update(dict.fromkeys(_equivalent(_operation(name))))
    return list(found)


def _operation(name: str) -> OpOverload:
    namespace, _, rest = name.partition(".")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None) if base else None
    found = getattr(packet, overload or "default", None)
    if not isinstance(found, OpOverload):
        raise UnknownOperation(
            f"saved_ops: torch {torch.__version__} has no operation {name!r}; write it as `aten.mm.default`, "
            "import the library that defines it before, or plan again with this torch"
        )
    return found


def _equivalent(operation: OpOverload) -> list[OpOverload]:
    if not is_fused_attention(str(operation)):
        return [operation]
    packets = [getattr(torch.ops.aten, base, None) for base in FUSED_ATTENTION]
    return [operation, *(packet.default for packet in packets if packet is not None)]
