"""Atoms of common methods: what a shard boundary must not cut, by the method that asks for it."""

from collections.abc import Mapping
from types import MappingProxyType

from planner.schema import Atom, FlatAtom, Quantizer, RowsAtom, TileAtom, UnknownName, WholeAtom

EIGHT_BIT_BLOCK = 256
"""Elements that share one scale in 8-bit optimizer state."""

ATOMS: Mapping[str, Atom] = MappingProxyType(
    {
        "8bit-block256": FlatAtom(num_elements=EIGHT_BIT_BLOCK),
        # Blocks of 64 values share a scale, and 256 such scales are quantized together.
        "nf4-64x256": FlatAtom(num_elements=64 * 256),
        "fp8-tile128x128": TileAtom(num_rows=128, num_columns=128),
        # One scale for each 32 elements of a row, and 16 (OCP Microscaling Formats 1.0; NVIDIA's NVFP4).
        "mx-block32": FlatAtom(num_elements=32),
        "nvfp4-block16": FlatAtom(num_elements=16),
        "muon": WholeAtom(),
        # Preconditioners of both sides need the matrix.
        "shampoo": WholeAtom(),
    }
)
"""Read-only: name of the method to its atom."""


QUANTIZER_ATOMS: Mapping[Quantizer, Atom] = MappingProxyType(
    {
        Quantizer.NF4: ATOMS["nf4-64x256"],
        Quantizer.FP8_ROWWISE: RowsAtom(num_rows=1),
        Quantizer.FP8_BLOCKWISE: ATOMS["fp8-tile128x128"],
        Quantizer.INT8_ROWWISE: RowsAtom(num_rows=1),
        Quantizer.MX: ATOMS["mx-block32"],
        Quantizer.NVFP4: ATOMS["nvfp4-block16"],
    }
)
"""Read-only: what shares a scale under each quantizer."""


def atom(name: str) -> Atom:
    """Atom of a method by its catalog name.

    Raises:
        UnknownName: no such entry; the message lists the known ones.
    """
    try:
        return ATOMS[name]
    except KeyError:
        raise UnknownName("atom", name, list(ATOMS)) from None
