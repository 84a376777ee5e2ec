"""How the buffers of a program are cut into tensors: by parameter, and by what calls save."""

from collections.abc import Iterator, Sequence
from functools import cache

from planner.program.build.calls import liveness_of
from planner.program.sizes import UnitBytes
from planner.program.step import KEEP, Activation, Knobs, StepInputs
from planner.simulate.segments import Tensors

Cut = tuple[str, tuple[int, ...]]
"""Name of a buffer, sizes of its tensors."""


def tensors_of(inputs: StepInputs, knobs: Knobs, optimizer_bytes: Sequence[int] = ()) -> Tensors:
    """Tensors of the buffers that `planner.program.build` names; all-gather and reduce buffers are one tensor each.

    Args:
        inputs: what the program is built from.
        knobs: all of them fixed.
        optimizer_bytes: optimizer state of each parameter on the device.
    """
    on_device = [size for unit, size in enumerate(inputs.sizes) if not knobs.is_on_host(unit)]
    buffers = {
        "parameters": tuple(piece.stored for size in on_device for piece in size.pieces),
        "optimizer": tuple(optimizer_bytes),
        **{name: sizes for unit, size in enumerate(inputs.sizes) for name, sizes in _of_unit(unit, size, knobs)},
        **dict(_of_calls(inputs, knobs)),
    }
    largest = {"optimizer step": max(buffers["parameters"], default=0)} | _largest(inputs)
    return Tensors(buffers=buffers, largest=largest)


def _of_unit(unit: int, size: UnitBytes, knobs: Knobs) -> Iterator[Cut]:
    pieces = size.pieces
    yield f"U{unit}", tuple(piece.gathered for piece in pieces)
    copied = knobs.is_on_host(unit)
    yield f"C{unit}", tuple(piece.cast or (piece.stored if copied else 0) for piece in pieces)
    yield f"W{unit}", tuple(piece.whole_gradient if size.accumulates_apart else piece.gradient for piece in pieces)
    for ranks, _ in knobs.reshard[unit]:
        if not isinstance(ranks, bool):
            yield f"F{unit}", tuple(piece.gathered // ranks for piece in pieces)


def _of_calls(inputs: StepInputs, knobs: Knobs) -> Iterator[Cut]:
    saved = cache(lambda kind, activation: _saved(inputs, kind, activation))
    for index, call in enumerate(inputs.partition.model.calls):
        choice = knobs.activation.get(index)
        activation = KEEP if choice is None else next(iter(choice))[0]
        yield f"K{index}", saved(call.kind, activation)
        yield f"G{inputs.partition.unit_of_call[index]}.{index}", inputs.gradients[index]


def _saved(inputs: StepInputs, name: str, activation: Activation) -> tuple[int, ...]:
    liveness = liveness_of(inputs.partition.model.kinds[name], activation)
    return tuple(tensor.size_bytes.at(inputs.micro_batch, inputs.sequence) for tensor in liveness.saved)


def _largest(inputs: StepInputs) -> dict[str, int]:
    """By path of a call: the largest tensor that it saves when it keeps everything."""
    model = inputs.partition.model
    of_kind = {name: max(_saved(inputs, name, KEEP), default=0) for name in model.kinds}
    return {call.path: of_kind[call.kind] for call in model.calls if of_kind[call.kind]}
