"""The layout problem: tensors in one buffer that is cut into one shard per rank, with places that must not be cut.

Tensor t has e_t elements and atom g_t. With the buffer's edges B_0 = 0 < B_1 < ... < B_m (B_k = k S for equal
ranks) and the tensor at [l_t, l_t + e_t):

    minimise S   subject to   intervals are disjoint and within [0, B_m);  S mod alignment = 0;
    for every edge B_k inside (l_t, l_t + e_t):  (B_k - l_t) mod g_t = 0

(veScale-FSDP, arXiv 2602.22437; NP-hard). The last atom of a tensor may be partial. All numbers are elements.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """What is placed as one run of elements."""

    name: str
    num_elements: int
    atom_elements: int = 1
    """Elements, from its first on, that stay together: 1 allows any cut, `num_elements` or more none."""

    @property
    def is_whole(self) -> bool:
        """Whether it must not be cut at all."""
        return self.atom_elements >= self.num_elements

    @property
    def size(self) -> tuple[int, int]:
        """Elements and atom; tensors of equal size are interchangeable."""
        return self.num_elements, min(self.atom_elements, self.num_elements)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProblem:
    """See the module docstring.

    Raises:
        ValueError: a number is not positive, names repeat, or there are not as many shares as ranks.
    """

    tensors: tuple[Tensor, ...]
    num_ranks: int
    alignment_elements: int = 1
    """S is a multiple of it (what collectives ask for)."""
    shares: tuple[int, ...] = ()
    """Rank r holds `shares[r] * S` elements; empty: each holds S."""

    def __post_init__(self) -> None:
        if min(self.num_ranks, self.alignment_elements, *self.shares, 1) < 1:
            raise ValueError("ranks, alignment and shares must be positive")
        if self.shares and len(self.shares) != self.num_ranks:
            raise ValueError(f"{len(self.shares)} shares for {self.num_ranks} ranks; give one for each")
        if not self.tensors:
            raise ValueError("a buffer needs at least one tensor")
        if len({tensor.name for tensor in self.tensors}) < len(self.tensors):
            raise ValueError("names of tensors must differ")
        for tensor in self.tensors:
            if min(tensor.num_elements, tensor.atom_elements) < 1:
                raise ValueError(f"elements and atom of {tensor.name!r} must be positive")

    @property
    def num_elements(self) -> int:
        """Elements of all tensors."""
        return sum(tensor.num_elements for tensor in self.tensors)

    @property
    def num_shares(self) -> int:
        """Elements of the whole buffer, in units of S."""
        return sum(self.shares) or self.num_ranks

    def edges(self, shard_elements: int) -> tuple[int, ...]:
        """B_0 to B_m for a shard size S."""
        shares = self.shares or (1,) * self.num_ranks
        return tuple(accumulate((share * shard_elements for share in shares), initial=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A solution. `offsets[i]` is the first element of tensor i of the problem."""

    offsets: tuple[int, ...]
    shard_elements: int
    """S."""
    lower_bound_elements: int
    """No layout has a smaller S."""

    @property
    def status(self) -> Literal["optimal", "bounded"]:
        """Whether the bound proves it best."""
        return "optimal" if self.shard_elements == self.lower_bound_elements else "bounded"

    @property
    def order(self) -> tuple[int, ...]:
        """Numbers of the tensors from the front of the buffer to its end."""
        return tuple(sorted(range(len(self.offsets)), key=self.offsets.__getitem__))


def padding_elements(problem: LayoutProblem, shard_elements: int) -> int:
    """Elements of the buffer that hold no tensor."""
    return problem.num_shares * shard_elements - problem.num_elements


def check(problem: LayoutProblem, layout: Layout) -> tuple[str, ...]:
    """What a layout violates, in words; nothing when it is valid. Straight from the definition, edge by edge."""
    if len(layout.offsets) != len(problem.tensors):
        return (f"{len(layout.offsets)} offsets for {len(problem.tensors)} tensors",)
    found: list[str] = []
    shard = layout.shard_elements
    if shard < 1 or shard % problem.alignment_elements:
        found.append(f"shard size {shard} is no positive multiple of {problem.alignment_elements}")
    if layout.lower_bound_elements > shard:
        found.append(f"lower bound {layout.lower_bound_elements} is above the shard size {shard}")
    edges = problem.edges(shard)
    placed = sorted(zip(layout.offsets, problem.tensors, strict=True), key=lambda pair: pair[0])
    for (offset, tensor), (following, other) in pairwise(placed):
        if offset + tensor.num_elements > following:
            found.append(f"{tensor.name!r} and {other.name!r} overlap")
    next_edge = 0
    for offset, tensor in placed:
        end = offset + tensor.num_elements
        if offset < 0 or end > edges[-1]:
            found.append(f"{tensor.name!r} at {offset} leaves the buffer of {edges[-1]}")
        while next_edge < len(edges) and edges[next_edge] <= offset:
            next_edge += 1
        for edge in edges[next_edge:]:
            if edge >= end:
                break
            if (edge - offset) % tensor.atom_elements:
                found.append(f"{tensor.name!r} is cut inside an atom at {edge}")
    return tuple(found)
