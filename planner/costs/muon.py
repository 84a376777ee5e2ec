"""Muon on sharded matrices as torch 2.13 runs it: `torch.optim.Muon` on DTensors sharded along dimension 0.

Each of five Newton-Schulz steps is a Gram matrix, its square and a product with the matrix, in bfloat16; DTensor
communicates where an operand is not at hand:

- a wide matrix (no more rows than columns) is gathered twice in each step, its Gram matrix once;
- a tall one is transposed, so that its columns are sharded: the Gram matrix is all-reduced twice in each step, and
  every rank squares all of it.

Operations, sizes and peaks were recorded on fake process groups of 1 to 16 ranks
(`tests/planner/costs/test_muon.py`). torch refuses matrices with fewer rows than ranks, and parameters that are no
matrices.
"""

from dataclasses import dataclass
from typing import Self

from planner.schema import DType, Parameter

NEWTON_SCHULZ_STEPS = 5
_BFLOAT16 = DType.BFLOAT16.itemsize_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MuonStep:
    """One step for one matrix, on a rank that holds `local_rows` of it."""

    rows: int
    columns: int
    local_rows: int
    num_ranks: int
    itemsize_bytes: int
    """Of the stored parameter."""

    @classmethod
    def of(cls, parameter: Parameter, elements: int, num_ranks: int | None = None) -> Self:
        """Of a shard of `elements`; without the number of ranks as many as fit are taken."""
        rows = parameter.shape[0] if parameter.shape else 1
        columns = parameter.num_elements // rows if rows else 0
        local_rows = -(-elements // columns) if columns else 0
        return cls(
            rows=rows,
            columns=columns,
            local_rows=local_rows,
            num_ranks=num_ranks or (-(-rows // local_rows) if local_rows else 1),
            itemsize_bytes=parameter.dtype.itemsize_bytes,
        )

    @property
    def is_wide(self) -> bool:
        """Rows are sharded; otherwise the matrix is transposed first."""
        return self.rows <= self.columns

    @property
    def whole_bytes(self) -> int:
        """The matrix as gathered."""
        return self.local_rows * self.num_ranks * self.columns * _BFLOAT16

    @property
    def gram_bytes(self) -> int:
        """The whole Gram matrix."""
        return min(self.rows, self.columns) ** 2 * _BFLOAT16

    @property
    def transient_bytes(self) -> int:
        """Most bytes alive beyond parameter, gradient and momentum.

        Of a wide matrix that is while it is gathered: the update in the storage dtype and in bfloat16, a contiguous
        copy of its transpose (not of a single row), the gathered pieces, the matrix put together from them, and two
        local Gram matrices.
        """
        local = self.local_rows * self.columns
        update = local * (self.itemsize_bytes + _BFLOAT16)
        next_one = local * _BFLOAT16
        if self.num_ranks == 1:
            return update + next_one + 2 * self.gram_bytes
        if self.is_wide:
            transposed = next_one if self.local_rows > 1 else 0
            return update + transposed + 2 * self.whole_bytes + 2 * self.local_rows * self.rows * _BFLOAT16
        return max(update + 4 * self.gram_bytes, update + next_one + 3 * self.gram_bytes)

    @property
    def flops(self) -> int:
        """On this rank, over all Newton-Schulz steps."""
        short, long = min(self.rows, self.columns), max(self.rows, self.columns)
        if self.is_wide:
            return NEWTON_SCHULZ_STEPS * 2 * self.local_rows * short * (2 * long + short)
        return NEWTON_SCHULZ_STEPS * 2 * short * short * (2 * self.local_rows + short)

    @property
    def gathered_bytes(self) -> tuple[int, ...]:
        """Size of each all-gather of a step."""
        if self.num_ranks == 1 or not self.is_wide:
            return ()
        gram = self.local_rows * self.num_ranks * self.rows * _BFLOAT16
        return NEWTON_SCHULZ_STEPS * (self.whole_bytes, gram, self.whole_bytes)

    @property
    def all_reduced_bytes(self) -> tuple[int, ...]:
        """Size of each all-reduce of a step over the shard axis; that of the norm, a number, is left out."""
        if self.num_ranks == 1 or self.is_wide:
            return ()
        return NEWTON_SCHULZ_STEPS * (self.gram_bytes, self.gram_bytes)
