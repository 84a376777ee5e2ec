"""State whose precision depends on where the shards end: predicted, with the reason."""

from collections.abc import Collection, Iterable

from planner.catalog.atoms import EIGHT_BIT_BLOCK
from planner.costs.optimizer import EIGHT_BIT_LEAST_ELEMENTS, is_eight_bit
from planner.program.pieces import Piece


def wide_pieces(pieces: Iterable[Piece], eight_bit: Collection[str]) -> tuple[Piece, ...]:
    """Pieces too small for 8-bit state, of parameters that have it as a whole."""
    return tuple(piece for piece in pieces if piece.parameter in eight_bit and not is_eight_bit(piece.num_elements))


def precision_notes(pieces: Iterable[Piece], eight_bit: Collection[str]) -> tuple[str, ...]:
    """What to expect of 8-bit state, in words; nothing when it is the same on any number of ranks."""
    wide = wide_pieces(pieces, eight_bit)
    if not wide:
        return ()
    first = wide[0]
    return (
        "pieces that keep float32 moments under adamw_8bit, though their parameters would have 8 bits: "
        f"{len(wide)}; a piece needs at least {EIGHT_BIT_LEAST_ELEMENTS} elements and a multiple of "
        f"{EIGHT_BIT_BLOCK}, and rank {first.rank} holds {first.num_elements} of {first.parameter!r}",
    )
