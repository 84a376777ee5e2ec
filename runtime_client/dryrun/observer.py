"""Sees every operation that the host issues and says what it is in FSDP2's terms."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from planner.program.edges import Issued
from planner.program.events import Phase
from planner.program.outline import RUNS, OutlineKind
from planner.schema import UnitPlan
from runtime_client.apply.activation_offload import SCOPE
from runtime_client.describe.ops import UNBOOKED, facts_of, tensors_in
from runtime_client.dryrun import recording_device
from runtime_client.dryrun.recording_device import DeviceLog, Stream
from runtime_client.fingerprint import unwrapped_name
from runtime_client.ragged import private
from runtime_client.ragged.gather import GatheredInPlace
from runtime_client.ragged.gradient import PlannedGradient


@dataclass(slots=True, kw_only=True)
class Observation:
    """One operation as the host issued it."""

    stream: int
    kind: OutlineKind
    unit: str
    phase: Phase
    micro_batch: int
    size_bytes: int = 0
    num_kernels: int = 1


_SCOPE = re.compile(rf"(?:FSDP::|{SCOPE})(?P<what>\w+)(?: \((?P<unit>[^)]*)\))?")
_CASTS = ("cast_forward_inputs", "cast_forward_outputs")
_ACTIVATION_COPIES = (OutlineKind.ACTIVATION_OUT, OutlineKind.ACTIVATION_IN)
_KINDS = {
    "fsdp::all_gather_copy_in": OutlineKind.COPY_IN,
    "c10d::_allgather_base_": OutlineKind.ALL_GATHER,
    "fsdp::split_with_sizes_copy": OutlineKind.COPY_OUT,
    "fsdp::chunk_cat": OutlineKind.CHUNK_CAT,
    "c10d::_reduce_scatter_base_": OutlineKind.REDUCE_SCATTER,
    "c10d::allreduce_": OutlineKind.ALL_REDUCE,
}
_SIZED = frozenset(
    {
        OutlineKind.HOST_TO_DEVICE,
        OutlineKind.RESHARD,
        OutlineKind.ACCUMULATE,
        OutlineKind.DIVIDE,
        OutlineKind.LOCAL_REDUCE,
        OutlineKind.OFFLOAD,
    }
)
"""Kinds whose size is what they write; in a copy-out or a chunk-cat further copies do not count."""


class _Crossing(Enum):
    """Where an operation has its tensors, unless all are on the device."""

    ON_HOST = auto()
    TO_DEVICE = auto()
    TO_HOST = auto()


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turns dispatched operations into observations and logs their issue on the recording device.

    FSDP2 wraps its work in profiler scopes that name the unit; the dispatcher shows those too. Views and
    allocations are no operations of a device and are left out.
    """

    def __init__(self, units: tuple[UnitPlan, ...], log: DeviceLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observations: list[Observation] = []
        self.micro_batch = 0
        self._first_module = {path: unit.modules[0] for unit in units for path in unit.modules}
        self._log = log
        self._scopes: list[tuple[str, str]] = []
        self._passes: list[str] = []
        self._stream_of_compute: Stream = recording_device.current_stream()

    def end_micro_batch(self) -> None:
        """Mark the end of a micro-batch on the compute stream."""
        self._observe(OutlineKind.END, "", num_kernels=0, phase=Phase.BACKWARD)
        self.micro_batch += 1
        self._passes.clear()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - the dispatcher's own types, here and below
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        match func._schema.name:
            case "profiler::_record_function_enter_new":
                self._enter(args[0])
            case "profiler::_record_function_exit":
                self._scopes.pop()
            case name if name in _KINDS and not _copies_nothing(func, args):
                kind = _KINDS[name]
                size = _size_bytes(kind, args, kwargs or {})
                self._observe(kind, self._scopes[-1][1], size_bytes=size)
            case name if name.startswith("aten::") and _is_kernel(func):
                self._observe_aten(name, args, result)
        return result

    def _enter(self, label: str) -> None:
        match = _SCOPE.match(label)
        what = match["what"] if match else ""
        unit = self._unit(match["unit"] or "") if match else ""
        self._scopes.append((what, unit))
        if what in ("pre_forward", "pre_backward") and unit and unit not in self._passes:
            self._passes.append(unit)
        if what in ("post_forward", "post_backward_accumulate") and unit in self._passes:
            self._passes.remove(unit)

    def _unit(self, names: str) -> str:
        """FSDP2 joins the names of a group; a unit goes by its first module."""
        path: str = unwrapped_name(names.split(", ")[0])
        return self._first_module.get(path, path)

    def _observe_aten(self, name: str, args: tuple[Any, ...], result: Any) -> None:  # noqa: ANN401
        crossing = _crossing(args, result)
        if crossing is _Crossing.ON_HOST:
            return
        what, unit = next(((what, unit) for what, unit in reversed(self._scopes) if what), ("", ""))
        if what in _ACTIVATION_COPIES:
            self._observe(OutlineKind(what), self._innermost, size_bytes=_written_bytes(result))
            return
        if not what or what in _CASTS:
            self._observe(OutlineKind.KERNELS, self._innermost)
            return
        found = self._kind_within(what, name, crossing)
        if found is not None:
            counts = found in _SIZED or (found is OutlineKind.COPY_OUT and name == "aten::copy_")
            size = _written_bytes(result) if counts else 0
            self._observe(found, unit, size_bytes=size)

    @property
    def _innermost(self) -> str:
        """Unit whose pass runs."""
        return self._passes[-1] if self._passes else ""

    def _kind_within(self, what: str, name: str, crossing: "_Crossing | None") -> OutlineKind | None:
        """What an operation is for FSDP2, by the scope that issues it; None where it belongs to what comes next."""
        on_compute = recording_device.current_stream() is self._stream_of_compute
        match what:
            case "all_gather" | "pre_forward" | "pre_backward" if crossing is _Crossing.TO_DEVICE:
                return OutlineKind.HOST_TO_DEVICE
            case "pre_forward" | "pre_backward" if on_compute:  # a shard degree of 1: shards become parameters
                return OutlineKind.COPY_OUT
            case "all_gather_copy_out":
                return OutlineKind.COPY_OUT
            case "post_forward":
                return OutlineKind.RESHARD
            case "post_backward_accumulate" | "post_backward_reshard":
                return OutlineKind.ACCUMULATE
            case "post_backward_reduce":
                return OutlineKind.CHUNK_CAT if on_compute else self._kind_within_reduction(name, crossing)
            case _:
                return None

    def _kind_within_reduction(self, name: str, crossing: "_Crossing | None") -> OutlineKind:
        before = self.observations[-1].kind
        if crossing is _Crossing.TO_HOST:
            return OutlineKind.OFFLOAD
        if before is OutlineKind.CHUNK_CAT and name == "aten::div_":
            return OutlineKind.DIVIDE
        if before in (OutlineKind.CHUNK_CAT, OutlineKind.DIVIDE) and name == "aten::copy_":
            return OutlineKind.LOCAL_REDUCE
        return OutlineKind.POST_REDUCE

    def _phase(self, kind: OutlineKind) -> Phase:
        """Only kernels of the model are recomputed; what FSDP2 does for them is part of the backward."""
        final_callback = any(what == "root_post_backward_callback" for what, _ in self._scopes)
        if torch._C._current_graph_task_id() == -1 and not final_callback:
            return Phase.FORWARD
        recomputes = kind is OutlineKind.KERNELS and torch.is_grad_enabled() and not final_callback
        return Phase.RECOMPUTE if recomputes else Phase.BACKWARD

    def _observe(
        self,
        kind: OutlineKind,
        unit: str,
        *,
        size_bytes: int = 0,
        num_kernels: int = 1,
        phase: Phase | None = None,
    ) -> None:
        seen = Observation(
            stream=recording_device.current_stream().number,
            kind=kind,
            unit=unit,
            phase=phase or self._phase(kind),
            micro_batch=self.micro_batch,
            size_bytes=size_bytes,
            num_kernels=num_kernels,
        )
        run = self._host_copies_of(seen) or (self.observations[-1] if self._continues(seen) else None)
        if run is not None:
            run.num_kernels += num_kernels
            run.size_bytes += size_bytes
            return
        recording_device.issue(len(self.observations))
        self.observations.append(seen)

    def _host_copies_of(self, seen: Observation) -> Observation | None:
        """Before the copy-out that `seen` would interrupt, where parameters come from the host one by one."""
        if seen.kind is not OutlineKind.HOST_TO_DEVICE or len(self.observations) < 2:
            return None
        copies, copy_out = self.observations[-2:]
        interrupts = copy_out.kind is OutlineKind.COPY_OUT and copy_out.stream == seen.stream
        return copies if interrupts and copies.unit == seen.unit and copies.kind is seen.kind else None

    def _continues(self, seen: Observation) -> bool:
        """Whether `seen` is one more kernel of the run before it: no event of its stream lies between."""
        if not self.observations or seen.kind not in RUNS:
            return False
        last = self.observations[-1]
        if (last.stream, last.kind, last.unit, last.phase, last.micro_batch) != (
            seen.stream,
            seen.kind,
            seen.unit,
            seen.phase,
            seen.micro_batch,
        ):
            return False
        touching = next(entry for entry in reversed(self._log.entries) if entry.stream == seen.stream)
        return isinstance(touching, Issued)


def _copies_nothing(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Of a gather in place there is nothing to copy out."""
    return func is private.COPY_OUT and isinstance(args[0], GatheredInPlace)


def _crossing(args: tuple[Any, ...], result: Any) -> _Crossing | None:  # noqa: ANN401 - tensors of any nesting
    read, written = _on_device(args), _on_device([result])
    if True not in read | written:
        return _Crossing.ON_HOST
    if written == {False}:
        return _Crossing.TO_HOST
    return _Crossing.TO_DEVICE if read == {False} else None


def _written_bytes(result: Any) -> int:  # noqa: ANN401 - tensors of any nesting
    return sum(map(_held_bytes, tensors_in([result])))


def _held_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor; of the gradient of a ragged buffer those of its parts, which leave out the gaps."""
    parts = tensor.parts.values() if isinstance(tensor, PlannedGradient) else (tensor,)
    return sum(part.nbytes for part in parts)


def _on_device(values: Sequence[Any]) -> set[bool]:
    return {tensor.device.type == recording_device.DEVICE_TYPE for tensor in tensors_in(values)}


def _is_kernel(func: OpOverload) -> bool:
    facts = facts_of(func)
    return func not in UNBOOKED and not (facts.is_view or facts.allocates_only or facts.host_sync)


def _size_bytes(kind: OutlineKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    match kind:
        case OutlineKind.COPY_IN:
            return int(args[3]) * int(args[1].element_size())
        case OutlineKind.ALL_GATHER | OutlineKind.COPY_OUT:
            return int(args[0].nbytes)
        case OutlineKind.CHUNK_CAT:
            return int(kwargs["out"].nbytes)
        case OutlineKind.REDUCE_SCATTER:
            return int(args[1].nbytes)
        case _:
            return int(args[0][0].nbytes)
