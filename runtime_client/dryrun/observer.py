"""Sees every operation that the host issues and says what it is in FSDP2's terms."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from planner.program.edges import Issued
from planner.program.events import Phase
from planner.program.outline import RUNS, OutlineKind
from planner.schema import UnitPlan
from runtime_client.describe.ops import UNBOOKED, facts_of
from runtime_client.dryrun import recording_device
from runtime_client.dryrun.recording_device import DeviceLog, Stream
from runtime_client.fingerprint import unwrapped_name


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


_SCOPE = re.compile(r"FSDP::(?P<what>\w+)(?: \((?P<unit>[^)]*)\))?")
_UNSHARD = ("pre_forward", "pre_backward")
"""Scopes in which FSDP2 copies shards straight to parameters when the shard degree is 1."""
_CASTS = ("cast_forward_inputs", "cast_forward_outputs")
_KINDS = {
    "fsdp::all_gather_copy_in": OutlineKind.COPY_IN,
    "c10d::_allgather_base_": OutlineKind.ALL_GATHER,
    "fsdp::split_with_sizes_copy": OutlineKind.COPY_OUT,
    "fsdp::chunk_cat": OutlineKind.CHUNK_CAT,
    "c10d::_reduce_scatter_base_": OutlineKind.REDUCE_SCATTER,
    "c10d::allreduce_": OutlineKind.ALL_REDUCE,
}


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
        self._observe(OutlineKind.END, "", Phase.BACKWARD, size_bytes=0, num_kernels=0)
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
            case name if name in _KINDS:
                kind = _KINDS[name]
                size = _size_bytes(kind, args, kwargs or {})
                self._observe(kind, self._scopes[-1][1], self._phase(), size_bytes=size)
            case name if name.startswith("aten::") and _is_kernel(func):
                self._observe_aten(name, result)
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

    def _observe_aten(self, name: str, result: Any) -> None:  # noqa: ANN401 - tensors of any nesting
        what, unit = next(((what, unit) for what, unit in reversed(self._scopes) if what), ("", ""))
        on_compute = recording_device.current_stream() is self._stream_of_compute
        if not what or what in _CASTS:
            self._observe(OutlineKind.KERNELS, self._passes[-1] if self._passes else "", self._phase())
        elif what.startswith("post_backward") and on_compute:
            self._observe(OutlineKind.ACCUMULATE, unit, self._phase())
        elif what in _UNSHARD and on_compute:
            size = int(result.nbytes) if name == "aten::copy_" else 0
            self._observe(OutlineKind.COPY_OUT, unit, self._phase(), size_bytes=size)
        elif what == "post_backward_reduce":
            if self.observations[-1].kind is OutlineKind.CHUNK_CAT:
                self._observe(OutlineKind.LOCAL_REDUCE, unit, self._phase(), size_bytes=int(result.nbytes))
            else:
                self._observe(OutlineKind.POST_REDUCE, unit, self._phase())

    def _phase(self) -> Phase:
        final_callback = any(what == "root_post_backward_callback" for what, _ in self._scopes)
        if torch._C._current_graph_task_id() == -1 and not final_callback:
            return Phase.FORWARD
        return Phase.RECOMPUTE if torch.is_grad_enabled() and not final_callback else Phase.BACKWARD

    def _observe(
        self, kind: OutlineKind, unit: str, phase: Phase, *, size_bytes: int = 0, num_kernels: int = 1
    ) -> None:
        seen = Observation(
            stream=recording_device.current_stream().number,
            kind=kind,
            unit=unit,
            phase=phase,
            micro_batch=self.micro_batch,
            size_bytes=size_bytes,
            num_kernels=num_kernels,
        )
        if self._continues(seen):
            self.observations[-1].num_kernels += num_kernels
            self.observations[-1].size_bytes += size_bytes
            return
        recording_device.issue(len(self.observations))
        self.observations.append(seen)

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
