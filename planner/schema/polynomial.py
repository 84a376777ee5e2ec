"""Quantities that depend on the micro-batch and the sequence length."""

from typing import Annotated

from pydantic import Field

from planner.schema.base import Part

Coefficient = Annotated[int | float, Field(allow_inf_nan=False)]


class Polynomial(Part):
    """`one + b B + s S + bs B S + bss B S^2` with B = micro-batch and S = sequence length.

    These five terms are all that transformer blocks need: parameters-sized (1), per sequence (B), position
    tables and masks (S, through B = 1), activations and matmul FLOPs (B S), attention (B S^2).
    """

    one: Coefficient = 0
    b: Coefficient = 0
    s: Coefficient = 0
    bs: Coefficient = 0
    bss: Coefficient = 0

    def at(self, micro_batch: int, sequence: int) -> int:
        """Value at a point, rounded to an integer and never negative."""
        value = (
            self.one
            + self.b * micro_batch
            + self.s * sequence
            + self.bs * micro_batch * sequence
            + self.bss * micro_batch * sequence * sequence
        )
        return max(0, round(value))

    def __bool__(self) -> bool:
        return any((self.one, self.b, self.s, self.bs, self.bss))
