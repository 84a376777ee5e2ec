"""What a layout plan consists of, with what it is compared to."""

from dataclasses import dataclass

from planner.schema import Layout, Parameter
from solver.layout.flexible import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """What may be chosen.

    Padding is accepted up to `accepted_ppm` millionths of the elements; beyond it a smaller shard degree is taken,
    and matrices that Muon wants whole are cut and get owners. Buffers are split beyond `one_buffer_ppm`, and each
    further one must save as much.
    """

    shard_degrees: tuple[int, ...]
    alignment_elements: int = 8
    max_buffers: int = 4
    """Of one storage dtype, requires_grad and optimizer group of a unit."""
    accepted_ppm: int = 30_000
    one_buffer_ppm: int = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBuffer:
    """One flat buffer of a unit."""

    layout: Layout
    parameters: tuple[tuple[str, Parameter], ...]
    """In the order of the module."""
    solved: Buffer
    """Names in it are full names; its bound is that of the shards."""
    owned: frozenset[str] = frozenset()
    """Matrices whose optimizer needs them whole, but which are cut."""
    eight_bit: frozenset[str] = frozenset()
    """Parameters whose optimizer state is in 8 bits."""

    @property
    def num_elements(self) -> int:
        """Elements of its parameters."""
        return self.solved.problem.num_elements

    @property
    def padding_elements(self) -> int:
        """Elements of the buffer that hold no parameter."""
        return self.solved.padding_elements

    @property
    def lower_bound_padding_elements(self) -> int:
        """No order of these parameters with these atoms has less."""
        problem = self.solved.problem
        return problem.num_ranks * self.solved.layout.lower_bound_elements - problem.num_elements

    @property
    def even_padding_elements(self) -> int:
        """Padding of FSDP2, which cuts each parameter along dimension 0 into chunks of equal size."""
        return sum(even_padding(parameter, self.solved.problem.num_ranks) for _, parameter in self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUnit:
    """Buffers of one `fully_shard` call."""

    modules: tuple[str, ...]
    buffers: tuple[PlannedBuffer, ...]
    given_order_padding_elements: int
    """Padding with the same atoms in the order of the module, all that may share a buffer in one."""

    @property
    def name(self) -> str:
        """First module; `(root)` for the root."""
        return self.modules[0] or "(root)"

    @property
    def num_elements(self) -> int:
        """Elements of all buffers."""
        return sum(buffer.num_elements for buffer in self.buffers)

    @property
    def padding_elements(self) -> int:
        """Padding of all buffers."""
        return sum(buffer.padding_elements for buffer in self.buffers)

    @property
    def even_padding_elements(self) -> int:
        """Padding of FSDP2 without layouts."""
        return sum(buffer.even_padding_elements for buffer in self.buffers)


def even_padding(parameter: Parameter, num_ranks: int) -> int:
    """Elements that chunks of ceil(d_0 / m) rows hold beyond the parameter."""
    rows = parameter.shape[0] if parameter.shape else 1
    return (-(-rows // num_ranks) * num_ranks - rows) * (parameter.num_elements // rows) if rows else 0
