"""Weights of a planned model: built without memory, loaded or initialised shard by shard, saved in shards."""

from runtime_client.ragged.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from runtime_client.weights.broadcast import load_from_rank_0
from runtime_client.weights.host_memory import check_host_memory
from runtime_client.weights.initialise import initialise
from runtime_client.weights.matching import Loaded
from runtime_client.weights.materialise import materialise
from runtime_client.weights.on_meta import on_meta
from runtime_client.weights.safetensor_files import load_safetensors

__all__ = [
    "Loaded",
    "check_host_memory",
    "initialise",
    "latest_checkpoint",
    "load_checkpoint",
    "load_from_rank_0",
    "load_safetensors",
    "materialise",
    "on_meta",
    "save_checkpoint",
]
