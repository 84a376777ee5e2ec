"""Quantities that depend on the micro-batch and the sequence length."""

from typing import Annotated

from pydantic import Field

from planner.schema.base import MAX_INTEGER, Part

Coefficient = Annotated[int | float, Field(ge=-MAX_INTEGER, le=MAX_INTEGER, allow_inf_nan=False)]


class Polynomial(Part):
    """`one + b B + s S + bs B S + ss S^2 + bss B S^2` with B = micro-batch and S = sequence length.

    These six terms are all that transformer blocks need: parameters-sized (1), per sequence (B), position
    tables (S), activations and matmul FLOPs (B S), masks and position biases of all sequences (S^2), attention
    (B S^2).
    """

    one: Coefficient = 0
    b: Coefficient = 0
    s: Coefficient = 0
    bs: Coefficient = 0
    ss: Coefficient = 0
    bss: Coefficient = 0

    def at(self, micro_batch: int, sequence: int) -> int:
        """Value at a point, rounded to an integer and never negative."""
        return max(0, round(sum(self._terms(micro_batch, sequence))))

    def is_negative_at(self, micro_batch: int, sequence: int) -> bool:
        """Whether the value at a point is below 0 by more than rounding."""
        terms = self._terms(micro_batch, sequence)
        return sum(terms) < -max(0.5, 1e-6 * sum(map(abs, terms)))

    def _terms(self, micro_batch: int, sequence: int) -> tuple[int | float, ...]:
        return (
            self.one,
            self.b * micro_batch,
            self.s * sequence,
            self.bs * micro_batch * sequence,
            self.ss * sequence * sequence,
            self.bss * micro_batch * sequence * sequence,
        )

    def __bool__(self) -> bool:
        return any((self.one, self.b, self.s, self.bs, self.ss, self.bss))
