"""Traces only a few blocks of each kind where the other ones are known to be equal.

The first point is traced with all blocks. At the others a block that equals others lets its input pass, but for the
first two and the last of its kind. Whatever does not fit together again then, has to be traced in full.
"""

from collections import Counter
from dataclasses import replace

from planner.schema.model import CallRole, SharedTensor
from runtime_client.describe.point import PointCall, PointTrace
from runtime_client.describe.run import RunTrace
from runtime_client.describe.storages import Label

_NUM_FIRST = 2
_NUM_LAST = 1


def skippable_blocks(
    base: PointTrace, plain: RunTrace, num_first: int = _NUM_FIRST, num_last: int = _NUM_LAST
) -> frozenset[str]:
    """Paths of blocks whose trace at another point follows from that of an equal block.

    Args:
        base: all calls at the first point.
        plain: the run that they come from.
        num_first: how many of each kind to trace all the same, from the first on.
        num_last: likewise at the end.
    """
    passable = passable_blocks(base, plain)
    return frozenset(
        base.calls[index].path
        for indices in _equal_calls(base).values()
        for index in indices[num_first : len(indices) - num_last]
        if index in passable
    )


def passable_blocks(base: PointTrace, plain: RunTrace) -> frozenset[int]:
    """Calls of blocks that can be left out of a run: they run once, and what they make is nobody else's."""
    makers_of_shared = {label[0] for label in base.shared}
    num_runs = Counter(call.path for call in base.calls)
    return frozenset(
        index
        for index, call in enumerate(base.calls)
        if call.kind.role is CallRole.BLOCK
        and plain.calls[index].passage is not None
        and index not in makers_of_shared
        and num_runs[call.path] == 1
    )


def completed(sample: PointTrace, base: PointTrace, skipped: frozenset[str]) -> PointTrace | None:
    """The trace of all calls from one without the skipped blocks; None where the two do not fit together."""
    if [call.path for call in sample.calls] != [call.path for call in base.calls]:
        return None
    if sample.shared.keys() != base.shared.keys() or sample.held_inputs.keys() != base.held_inputs.keys():
        return None
    calls = list(sample.calls)
    for indices in _equal_calls(base).values():
        traced = [index for index in indices if base.calls[index].path not in skipped]
        first = calls[traced[0]]
        if any(not _are_equal(calls[index], first) for index in traced):
            return None
        for index in indices:
            calls[index] = replace(first, path=base.calls[index].path)
    return replace(sample, calls=tuple(calls), shared=_resized(base.shared, sample.shared))


def _equal_calls(trace: PointTrace) -> dict[object, list[int]]:
    groups: dict[object, list[int]] = {}
    for index, call in enumerate(trace.calls):
        groups.setdefault((call.kind, call.ops), []).append(index)
    return groups


def _are_equal(one: PointCall, other: PointCall) -> bool:
    return one.kind == other.kind and one.ops == other.ops


def _resized(base: dict[Label, SharedTensor], sample: dict[Label, SharedTensor]) -> dict[Label, SharedTensor]:
    return {
        label: tensor.model_copy(update={"size_bytes": sample[label].size_bytes}) for label, tensor in base.items()
    }
