"""Atoms: what a shard boundary must not cut in a parameter."""

from typing import Annotated, Literal

from pydantic import Field

from planner.schema.base import Part, Positive


class ElementAtom(Part):
    """Any boundary is allowed."""

    type: Literal["element"] = "element"


class FlatAtom(Part):
    """Runs of `num_elements` consecutive elements stay together (8-bit state, NF4)."""

    type: Literal["flat"] = "flat"
    num_elements: Positive


class RowsAtom(Part):
    """`num_rows` rows of the last dimension of a contiguous tensor stay together."""

    type: Literal["rows"] = "rows"
    num_rows: Positive


class TileAtom(Part):
    """Tiles of `num_rows` x `num_columns` stay together (fp8, MX); constrains `num_rows` rows."""

    type: Literal["tile"] = "tile"
    num_rows: Positive
    num_columns: Positive


class WholeAtom(Part):
    """The whole tensor stays on one rank (Muon, Shampoo)."""

    type: Literal["whole"] = "whole"


Atom = Annotated[ElementAtom | FlatAtom | RowsAtom | TileAtom | WholeAtom, Field(discriminator="type")]
