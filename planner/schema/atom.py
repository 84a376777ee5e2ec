"""Atoms: what a shard boundary must not cut in a parameter."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from planner.schema.base import Part, Positive


class _Atom(Part):
    """Says its type even where defaults are left out: readers choose by it, and identities differ by it."""

    type: str

    @model_serializer(mode="wrap")
    def _with_type(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"type": self.type, **handler(self)}


class ElementAtom(_Atom):
    """Any boundary is allowed."""

    type: Literal["element"] = "element"


class FlatAtom(_Atom):
    """Runs of `num_elements` consecutive elements stay together (8-bit state, NF4)."""

    type: Literal["flat"] = "flat"
    num_elements: Positive


class RowsAtom(_Atom):
    """`num_rows` rows of the last dimension of a contiguous tensor stay together."""

    type: Literal["rows"] = "rows"
    num_rows: Positive


class TileAtom(_Atom):
    """Tiles of `num_rows` x `num_columns` stay together (fp8, MX); constrains `num_rows` rows."""

    type: Literal["tile"] = "tile"
    num_rows: Positive
    num_columns: Positive


class WholeAtom(_Atom):
    """The whole tensor stays on one rank (Muon, Shampoo)."""

    type: Literal["whole"] = "whole"


Atom = Annotated[ElementAtom | FlatAtom | RowsAtom | TileAtom | WholeAtom, Field(discriminator="type")]
