"""A unit's tensors where more than their order is open: shard degree, atoms, and which tensors share a buffer."""

from dataclasses import dataclass
from math import gcd

from solver.layout.problem import Layout, LayoutProblem, Tensor, padding_elements

NEAR_SHARES = 4
"""Numbers of steps per rank, from the least on, whose divisors are tried as atoms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexibleTensor:
    """A tensor whose atom is `least_steps` to `most_steps` times `step_elements`, e.g. 16 to 128 rows."""

    name: str
    num_elements: int
    step_elements: int = 1
    least_steps: int = 1
    most_steps: int = 1

    def atoms(self, num_ranks: int) -> tuple[int, ...]:
        """Atoms worth trying, coarsest first: the finest, its doubles, and divisors of what a rank may hold."""
        per_rank = -(-self.num_elements // (self.step_elements * num_ranks))
        steps = {self.least_steps, self.most_steps}
        doubled = 2 * self.least_steps
        while doubled < self.most_steps:
            steps.add(doubled)
            doubled *= 2
        for share in range(per_rank, per_rank + NEAR_SHARES):
            steps.add(largest_divisor(share, self.least_steps, self.most_steps) or self.least_steps)
        return tuple(sorted((self.step_elements * number for number in steps), reverse=True))

    def coarsest(self, offset: int, shard_elements: int) -> Tensor:
        """The tensor with the coarsest atom that the cuts of a valid place allow."""
        first = shard_elements - offset % shard_elements
        steps = self.most_steps
        if first < self.num_elements:
            is_cut_again = first + shard_elements < self.num_elements
            common = gcd(first, shard_elements) if is_cut_again else first
            steps = (
                largest_divisor(common // self.step_elements, self.least_steps, self.most_steps) or self.least_steps
            )
        return Tensor(name=self.name, num_elements=self.num_elements, atom_elements=self.step_elements * steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointProblem:
    """Tensors of one unit and what may be chosen.

    Raises:
        ValueError: there is no tensor, degree or buffer, or a range of steps is empty.
    """

    tensors: tuple[FlexibleTensor, ...]
    rank_options: tuple[int, ...]
    """Shard degrees that may be used."""
    alignment_elements: int = 1
    max_buffers: int = 4
    accepted_ppm: int = 30_000
    """Padding, in millionths of the elements, with which the largest degree is taken; 30,000 are 3 %."""
    elements_per_buffer: int = 0
    """Each further buffer must save more padding than this."""

    def __post_init__(self) -> None:
        if not self.tensors or not self.rank_options or self.max_buffers < 1:
            raise ValueError("a joint problem needs a tensor, a shard degree and a buffer")
        for tensor in self.tensors:
            if not 1 <= tensor.least_steps <= tensor.most_steps:
                raise ValueError(
                    f"{tensor.name!r} has no atom of {tensor.least_steps} to {tensor.most_steps} steps"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A buffer with the atoms that were chosen."""

    problem: LayoutProblem
    layout: Layout

    @property
    def padding_elements(self) -> int:
        """Elements of it that hold no tensor."""
        return padding_elements(self.problem, self.layout.shard_elements)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointLayout:
    """What was chosen. The bounds in it are those of each buffer with its tensors and atoms."""

    num_ranks: int
    buffers: tuple[Buffer, ...]

    @property
    def padding_elements(self) -> int:
        """Elements of all buffers that hold no tensor."""
        return sum(buffer.padding_elements for buffer in self.buffers)

    @property
    def num_elements(self) -> int:
        """Elements of all tensors."""
        return sum(buffer.problem.num_elements for buffer in self.buffers)


def largest_divisor(number: int, least: int, most: int) -> int | None:
    """The largest divisor of a number within a range; None when there is none.

    >>> largest_divisor(45, 16, 128), largest_divisor(90, 16, 80), largest_divisor(13, 16, 128)
    (45, 45, None)
    """
    return next((d for d in range(min(most, number), least - 1, -1) if number % d == 0), None)
