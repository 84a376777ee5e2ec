"""Shares of a recomputation that stops in the middle of a region."""

import pytest

from planner.schema import CallKind, Liveness, Polynomial, Region, Work
from runtime_client.describe import DifferentTraces
from runtime_client.describe.recomputation import with_recomputation


def work(num_kernels: int, per_kernel: int = 10) -> Work:
    return Work(
        flops=Polynomial(one=num_kernels * per_kernel),
        moved_bytes=Polynomial(one=num_kernels * per_kernel),
        num_kernels=num_kernels,
    )


def region(forward: int, recompute: int = 0) -> Region:
    return Region(forward=work(forward), recompute=work(recompute))


def part(*forward: int, full: Liveness | None = None) -> CallKind:
    return CallKind(regions=tuple(region(count) for count in forward), full=full)


def shares(kinds: list[CallKind]) -> list[list[int]]:
    return [[region.recompute.num_kernels for region in kind.regions] for kind in kinds]


def test_regions_are_shared_out_kernel_by_kernel() -> None:
    whole = (region(4, 4), region(0), region(5, 3), region(2))
    kinds = with_recomputation(whole, [part(3), part(1, 0, 2), part(3, 1), part(1)])
    assert shares(kinds) == [[3], [1, 0, 2], [1, 0], [0]]
    assert kinds[2].regions[0].recompute == work(1)


def test_parts_that_can_be_checkpointed_alone_keep_what_that_recomputes() -> None:
    alone = CallKind(regions=(region(3, 2),), full=Liveness())
    assert shares(with_recomputation((region(4, 4),), [alone, part(1)])) == [[2], [1]]


@pytest.mark.parametrize("parts", [[part(5)], [part(4), part(1)], [part(3), part(2)]])
def test_other_kernels_than_those_of_the_call_are_refused(parts: list[CallKind]) -> None:
    with pytest.raises(DifferentTraces, match="other kernels"):
        with_recomputation((region(4, 4),), parts)
