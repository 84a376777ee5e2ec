"""Checkpoints of sharded models: in torch's distributed format, under the original names, safe against crashes."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from planner.schema.errors import ShardwrightError
from runtime_client.durable import flush_directory

_UNFINISHED = ".part"
_METADATA = ".metadata"


class CheckpointExists(ShardwrightError):
    """A checkpoint of that name is there already."""

    code = "checkpoint_exists"


def save_checkpoint(path: str | os.PathLike[str], model: nn.Module, optimizers: Iterable[Optimizer] = ()) -> None:
    """Write model and optimizer state into a new directory; every rank calls it.

    Ragged, evenly sharded and whole parameters are all written under their original names and shapes, so that the
    directory can be loaded with any layout, on any number of ranks, and by plain `torch.distributed.checkpoint`:
    keys are those of `{"model": get_model_state_dict(..), "optimizer": get_optimizer_state_dict(..)}`. It gets its
    name last: if the job dies before, `path` does not exist, and what was saved earlier is untouched.

    Raises:
        CheckpointExists: `path` is there already.
    """
    target = Path(path)
    if target.exists():
        raise CheckpointExists(f"{target} exists already. Give each checkpoint a name of its own.")
    unfinished = target.with_name(target.name + _UNFINISHED)
    if _is_first_rank():
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    _barrier()
    dcp.save(_state(model, optimizers), checkpoint_id=unfinished)  # type: ignore[attr-defined]
    if _is_first_rank():
        unfinished.rename(target)
        flush_directory(target.parent)
    _barrier()


def load_checkpoint(path: str | os.PathLike[str], model: nn.Module, optimizers: Iterable[Optimizer] = ()) -> None:
    """Load what `save_checkpoint` wrote into a model and its optimizers, however they are sharded."""
    found = list(optimizers)
    state = _state(model, found)
    dcp.load(state, checkpoint_id=path)  # type: ignore[attr-defined]
    set_model_state_dict(model, state["model"])
    if found:
        set_optimizer_state_dict(model, found, state["optimizer"])


def latest_checkpoint(directory: str | os.PathLike[str]) -> Path | None:
    """The complete checkpoint in a directory that was finished last; None where there is none."""
    complete = [path.parent for path in Path(directory).glob(f"*/{_METADATA}") if path.parent.suffix != _UNFINISHED]
    return max(complete, key=lambda path: (path / _METADATA).stat().st_mtime_ns, default=None)


def _state(model: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, Any]:
    found = list(optimizers)
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    if found:
        state["optimizer"] = get_optimizer_state_dict(model, found)
    return state


def _is_first_rank() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
