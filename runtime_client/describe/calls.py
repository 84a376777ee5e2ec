"""What one run shows of each call: regions and their work, moments, the order of gradients."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from planner.schema.base import DType
from planner.schema.model import CallRole, RegionKind
from runtime_client.describe.ops import OpFacts
from runtime_client.describe.passing import Passage


class Pass(StrEnum):
    """When an operation runs."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"


@dataclass(slots=True, kw_only=True)
class WorkCount:
    """Work of one region in one pass."""

    flops: int = 0
    moved_bytes: int = 0
    num_kernels: int = 0

    def add(self, flops: int, moved_bytes: int) -> None:
        """Count one kernel."""
        self.flops += flops
        self.moved_bytes += moved_bytes
        self.num_kernels += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OpUse:
    """An operation and all work that it does in one pass."""

    facts: OpFacts
    work: WorkCount = field(default_factory=WorkCount)


@dataclass(slots=True, kw_only=True)
class RegionTrace:
    """Consecutive operations of one module and one kind."""

    module: str
    kind: RegionKind
    dtypes: Counter[DType] = field(default_factory=Counter)
    """Kernels of the forward by the element type that they compute in."""
    host_sync: bool = False
    works: dict[Pass, WorkCount] = field(default_factory=lambda: {step: WorkCount() for step in Pass})

    @property
    def dtype(self) -> DType:
        """Element type of most kernels, whatever their sizes; bfloat16 where none computes."""
        return self.dtypes.most_common(1)[0][0] if self.dtypes else DType.BFLOAT16


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentTrace:
    """All activation-like bytes alive just after an allocation."""

    region: int
    live_bytes: int
    num_gradients: int


@dataclass(slots=True, kw_only=True)
class CallTrace:
    """One call of one run.

    Attributes:
        index: place in the forward.
        path: module path; a container's for glue.
        role: what it is.
        ops: operations of the forward with their regions; recomputation repeats a prefix of them, without those
            whose outputs it finds kept.
        kernel_ops: operations that launch kernels, by pass.
        op_uses: kernels of the forward by operation (overloads, as `aten.mm.default`).
        forward, backward: moments in order.
        gradient_order: relative names of parameters as their gradients complete.
        boundary_bytes: bytes of its tensor inputs and outputs.
        passage: what can stand for it where its trace is known.
        num_allocated: storages that its forward has made.
        live_at_return: activation-like bytes alive when its forward ends, while the caller still holds its inputs.
        live_after_forward, live_after_backward: those alive when the next call's begins.
        live_before_sums: those alive in backward when the gradients of its inputs are there; None where no join
            tells (`join`).
        live_in_sums: those alive when autograd, after that, adds them to gradients that other calls gave.
        turns: for each container that it runs in, how often that had started.
    """

    index: int
    path: str
    role: CallRole
    regions: list[RegionTrace] = field(default_factory=list)
    ops: list[tuple[str, int]] = field(default_factory=list)
    kernel_ops: dict[Pass, list[str]] = field(default_factory=lambda: {step: [] for step in Pass})
    op_uses: dict[str, OpUse] = field(default_factory=dict)
    forward: list[MomentTrace] = field(default_factory=list)
    backward: list[MomentTrace] = field(default_factory=list)
    gradient_order: list[str] = field(default_factory=list)
    kernels: set[str] = field(default_factory=set)
    input_requires_grad: bool = False
    output_requires_grad: bool = False
    boundary_bytes: int = 0
    passage: Passage | None = None
    num_allocated: int = 0
    live_at_return: int = 0
    live_after_forward: int = 0
    live_after_backward: int = 0
    live_before_sums: int | None = None
    live_in_sums: list[int] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        """Whether it launches, allocates or waits for anything."""
        return bool(
            self.forward
            or self.backward
            or self.gradient_order
            or any(region.host_sync or _num_kernels(region) for region in self.regions)
        )

    def region_for(self, module: str, kind: RegionKind) -> int:
        """Index of the region that a kernel of this module and kind extends or opens."""
        last = self.regions[-1] if self.regions else None
        if last is None or last.module != module or last.kind != kind:
            self.regions.append(RegionTrace(module=module, kind=kind))
        return len(self.regions) - 1

    def region_of_view(self, module: str) -> int:
        """Region that a view belongs to: the module's own where it is open, else the one opened next."""
        is_open = bool(self.regions) and self.regions[-1].module == module
        return len(self.regions) - 1 if is_open else len(self.regions)

    def close(self) -> None:
        """Give views at the very end a region that exists."""
        if not self.regions:
            self.regions.append(RegionTrace(module="", kind=RegionKind.OTHER))

    def relative(self, name: str) -> str:
        """A full name without the path of this call; the loss has full names."""
        return name.removeprefix(f"{self.path}.") if self.path else name

    def owns(self, name: str) -> bool:
        """Whether a full name lies at or below the path of this call; the loss may use any module."""
        return not self.path or self.role is CallRole.LOSS or name.startswith(f"{self.path}.")


def _num_kernels(region: RegionTrace) -> int:
    return sum(work.num_kernels for work in region.works.values())
