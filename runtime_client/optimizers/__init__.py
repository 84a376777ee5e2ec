"""Optimizers that keep to what the layout promises them: whole matrices, whole quantization blocks."""

from runtime_client.optimizers.adam8bit import Adam8bit
from runtime_client.optimizers.muon import Muon

__all__ = ["Adam8bit", "Muon"]
