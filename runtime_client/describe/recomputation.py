"""What the code of a call between its children runs again when the whole call is checkpointed."""

from collections.abc import Iterable, Sequence

from planner.schema.model import CallKind, Region, Work
from planner.schema.polynomial import Polynomial
from runtime_client.describe.errors import DifferentTraces


def with_recomputation(whole: Sequence[Region], parts: Iterable[CallKind]) -> list[CallKind]:
    """Give parts that cannot be checkpointed alone their share of what the whole call recomputes.

    Both run the same kernels in the same order, and recomputation repeats the first of them: of a region that is
    recomputed in part it repeats the first kernels.

    Args:
        whole: regions of the call, with constants for polynomials.
        parts: kinds of all its parts in order, likewise.

    Raises:
        DifferentTraces: the parts run other kernels than the whole call.
    """
    shares = _Shares(whole)
    kinds = []
    for part in parts:
        works = [shares.take(region.forward) for region in part.regions]
        if part.full is None:
            regions = tuple(
                region.model_copy(update={"recompute": work})
                for region, work in zip(part.regions, works, strict=True)
            )
            part = part.model_copy(update={"regions": regions})
        kinds.append(part)
    return kinds


class _Shares:
    """Hands out the recomputation of the regions of a call, kernel by kernel."""

    def __init__(self, whole: Sequence[Region]) -> None:
        self._regions = [region for region in whole if region.forward.num_kernels]
        self._num_taken = 0
        self._left = Work()
        """Recomputation of the region that is being handed out, less what was taken of it."""

    def take(self, forward: Work) -> Work:
        """What is recomputed of the next kernels, whose forward this is."""
        if not forward.num_kernels:
            return Work()
        if not self._num_taken:
            if not self._regions:
                raise _different()
            self._left = self._regions[0].recompute
        self._num_taken += forward.num_kernels
        remaining = self._regions[0].forward.num_kernels - self._num_taken
        if remaining < 0:
            raise _different()
        if not remaining:
            self._regions.pop(0)
            self._num_taken = 0
        taken = forward if self._left.num_kernels >= forward.num_kernels else self._left
        self._left = _difference(self._left, taken)
        return taken


def _difference(one: Work, other: Work) -> Work:
    return Work(
        flops=Polynomial(one=one.flops.one - other.flops.one),
        moved_bytes=Polynomial(one=one.moved_bytes.one - other.moved_bytes.one),
        num_kernels=one.num_kernels - other.num_kernels,
    )


def _different() -> DifferentTraces:
    return DifferentTraces(
        "a block launches other kernels when its children are looked into: its forward must not depend on hooks"
    )
