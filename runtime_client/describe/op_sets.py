"""Which sets of operations are tried for selective checkpointing."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from planner.catalog.fused_attention import is_fused_attention
from planner.schema.model import RegionKind
from runtime_client.describe.calls import CallTrace, OpUse, WorkCount
from runtime_client.describe.ops import OpFacts

SavedOps = frozenset[str]
"""Names of overloads, as `aten.mm.default`."""

MAX_OPS = 5
"""Operations that are combined."""
MIN_SHARE = 0.01
"""Of the forward of all blocks looked at: what costs less is not worth a name in a plan."""
FLOPS_PER_BYTE = 295
"""Balance of an H100 (989 TFLOP/s in bfloat16, 3.35 TB/s): weighs bytes moved against FLOPs."""
_EXPENSIVE = (RegionKind.MATMUL, RegionKind.GROUPED_MATMUL, RegionKind.ATTENTION, RegionKind.CONVOLUTION)


def op_sets(blocks: Sequence[CallTrace], attention_draws: bool) -> Iterator[SavedOps]:
    """Sets of the expensive operations of some blocks, small ones first.

    Expensive are products, attention, convolutions and operations of other libraries, which stand for kernels of
    their own. A set with a random operation brings along all of them, and is left out where one works in place.

    Args:
        blocks: traces without checkpointing.
        attention_draws: whether fused attention has dropout.
    """
    uses = _total_uses(blocks)
    random = {name: use for name, use in uses.items() if _draws(use.facts, attention_draws)}
    is_random_kept = not any(use.facts.mutates for use in random.values())
    tried: set[SavedOps] = set()
    expensive = _expensive(uses)
    for size in range(1, len(expensive) + 1):
        for names in combinations(expensive, size):
            ops = frozenset(names)
            if ops & random.keys():
                if not is_random_kept:
                    continue
                ops |= frozenset(random)
            if ops not in tried:
                tried.add(ops)
                yield ops


def _total_uses(blocks: Sequence[CallTrace]) -> dict[str, OpUse]:
    total: dict[str, OpUse] = {}
    for block in blocks:
        for name, use in block.op_uses.items():
            work = total.setdefault(name, OpUse(facts=use.facts)).work
            work.flops += use.work.flops
            work.moved_bytes += use.work.moved_bytes
    return total


def _expensive(uses: dict[str, OpUse]) -> list[str]:
    least = MIN_SHARE * sum(_cost(use.work) for use in uses.values())
    names = [name for name, use in uses.items() if _is_large(use.facts) and _cost(use.work) >= least]
    return sorted(names, key=lambda name: (-_cost(uses[name].work), name))[:MAX_OPS]


def _is_large(facts: OpFacts) -> bool:
    is_of_a_library = not facts.overload.startswith(("aten.", "prims."))
    return not facts.mutates and (facts.kind in _EXPENSIVE or is_of_a_library)


def _draws(facts: OpFacts, attention_draws: bool) -> bool:
    return facts.is_random and (attention_draws or not is_fused_attention(facts.overload))


def _cost(work: WorkCount) -> int:
    return max(work.flops, FLOPS_PER_BYTE * work.moved_bytes)
