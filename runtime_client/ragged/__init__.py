"""Ragged shards over unmodified FSDP2: planned buffers whose even chunks are the planned shards."""

from runtime_client.ragged.local_pieces import LocalPiece, local_pieces
from runtime_client.ragged.reduction import deterministic_reduction

__all__ = ["LocalPiece", "deterministic_reduction", "local_pieces"]
