"""Puts the traces of all points together: one kind for equal calls, polynomials for quantities."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.schema.model import LOSS_PATH, Call, CallKind, CallRole, HeldInput, SharedTensor
from planner.schema.polynomial import Polynomial
from runtime_client.describe.errors import DifferentTraces
from runtime_client.describe.fit import Fitter, PointSet, without_dominated
from runtime_client.describe.parts import TracedParts
from runtime_client.describe.point import PointCall, PointTrace
from runtime_client.describe.prepare import unused_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a description says of the calls of a model."""

    kinds: dict[str, CallKind]
    calls: tuple[Call, ...]
    shared: tuple[SharedTensor, ...]
    held_inputs: tuple[HeldInput, ...]
    inputs_bytes: Polynomial


def assemble(point_set: PointSet, traces: Sequence[PointTrace], parts: TracedParts | None = None) -> Body:
    """Fit every quantity and store equal calls once, with their parts.

    Raises:
        DifferentTraces: the points do not run the same operations.
        NotPolynomial: a quantity is no combination of the terms of `point_set`.
    """
    fitter = Fitter(point_set)
    require_equal_ops(traces)
    columns = [
        (index, column)
        for index, column in enumerate(zip(*(trace.calls for trace in traces), strict=True))
        if any(call.has_work for call in column)
    ]
    new_index = {index: position for position, (index, _) in enumerate(columns)}
    fitted: dict[tuple[CallKind, ...], CallKind] = {}
    called = [
        (column[0].path, _with_parts(_kind(fitter, column, fitted), index, parts)) for index, column in columns
    ]
    names = _names(called)
    return Body(
        kinds={name: kind for kind, name in names.items()} | (dict(parts.kinds) if parts is not None else {}),
        calls=tuple(Call(path=path, kind=names[kind]) for path, kind in called),
        shared=_shared(fitter, traces, new_index),
        held_inputs=tuple(_held_inputs(fitter, traces, new_index)),
        inputs_bytes=fitter.merge([trace.inputs_bytes for trace in traces], "", "inputs"),
    )


def _with_parts(kind: CallKind, index: int, parts: TracedParts | None) -> CallKind:
    if parts is None or index not in parts.calls:
        return kind
    return kind.model_copy(update={"parts": parts.calls[index]})


def wished_name(path: str, role: CallRole) -> str:
    """Readable name of what a frontier module does or holds."""
    if role in (CallRole.BLOCK, CallRole.LOSS):
        return str(role)
    return path.rpartition(".")[2].strip("()") or "model"


def _names(called: Sequence[tuple[str, CallKind]]) -> dict[CallKind, str]:
    """A name for each kind, in order of first use; of several alike the most used has the plain name."""
    first_path: dict[CallKind, str] = {}
    for path, kind in called:
        first_path.setdefault(kind, path)
    counts = Counter(kind for _, kind in called)
    taken: set[str] = set()
    chosen = {
        kind: unused_name(wished_name(first_path[kind], kind.role), taken)
        for kind in sorted(first_path, key=lambda kind: -counts[kind])
    }
    return {kind: chosen[kind] for kind in first_path}


def _kind(fitter: Fitter, column: Sequence[PointCall], fitted: dict[tuple[CallKind, ...], CallKind]) -> CallKind:
    kinds = tuple(call.kind for call in column)
    if kinds not in fitted:
        fitted[kinds] = without_dominated(fitter.merge(kinds, column[0].path))
    return fitted[kinds]


def require_equal_ops(traces: Sequence[PointTrace]) -> None:
    """Refuse traces that do not run the same operations in the same calls.

    Raises:
        DifferentTraces: they do not.
    """
    _require_equal_paths(traces)
    for column in zip(*(trace.calls for trace in traces), strict=True):
        _require_equal_ops_of_call(column)


def _require_equal_paths(traces: Sequence[PointTrace]) -> None:
    expected = [call.path for call in traces[0].calls]
    for trace in traces[1:]:
        paths = [call.path for call in trace.calls]
        if paths != expected:
            raise DifferentTraces(
                f"at micro-batch {trace.point.micro_batch} and sequence {trace.point.sequence} the model makes "
                f"{len(paths)} calls, elsewhere {len(expected)}: its control flow must not depend on sizes"
            )


def _require_equal_ops_of_call(column: Sequence[PointCall]) -> None:
    for call in column[1:]:
        for one, other in zip(column[0].ops, call.ops, strict=True):
            if one != other:
                raise DifferentTraces(
                    f"module {_shown(call.path)} runs {_difference(one, other)} at another size: its operations "
                    "must not depend on the micro-batch or the sequence length"
                )


def _difference(one: tuple[str, ...], other: tuple[str, ...]) -> str:
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return f"{b} in place of {a} as kernel {position}"
    return f"{len(other)} kernels in place of {len(one)}"


def _shown(path: str) -> str:
    return "the loss" if path == LOSS_PATH else repr(path)


def _shared(fitter: Fitter, traces: Sequence[PointTrace], new_index: dict[int, int]) -> tuple[SharedTensor, ...]:
    if any(trace.shared.keys() != traces[0].shared.keys() for trace in traces):
        raise DifferentTraces("other storages are saved by several calls at another size: avoid branches on sizes")
    merged = []
    for label in traces[0].shared:
        path = traces[0].calls[label[0]].path
        tensor = fitter.merge([trace.shared[label] for trace in traces], path, "shared")
        first = new_index[tensor.first_call]
        indices = {
            "first_call": first,
            "last_call": new_index[tensor.last_call],
            "held_until": _held_until(tensor.held_until, first, new_index),
        }
        merged.append(tensor.model_copy(update=indices))
    return tuple(merged)


def _held_inputs(fitter: Fitter, traces: Sequence[PointTrace], new_index: dict[int, int]) -> Iterator[HeldInput]:
    if any(trace.held_inputs.keys() != traces[0].held_inputs.keys() for trace in traces):
        raise DifferentTraces("other storages are held by callers at another size: avoid branches on sizes")
    for label, first in traces[0].held_inputs.items():
        held = fitter.merge([trace.held_inputs[label] for trace in traces], traces[0].calls[label[0]].path, "held")
        call = new_index[first.call]
        held_until = _held_until(first.held_until, call, new_index)
        if held_until is not None:
            yield held.model_copy(update={"call": call, "held_until": held_until})


def _held_until(index: int | None, first: int, new_index: dict[int, int]) -> int | None:
    """The last call at or before this one that is not left out; None where that is not after the first call."""
    if index is None:
        return None
    last = max(position for old, position in new_index.items() if old <= index)
    return last if last > first else None
