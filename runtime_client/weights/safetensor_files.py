"""Load safetensors files, as Hugging Face writes them; each rank reads only what it holds."""

import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from runtime_client.apply.applied import AppliedPlan
from runtime_client.weights.errors import CheckpointUnreadable
from runtime_client.weights.matching import Loaded, Rename, check_like, match, write
from runtime_client.weights.materialise import Build, materialise

_INDEX = "model.safetensors.index.json"


def load_safetensors(
    applied: AppliedPlan,
    path: str | os.PathLike[str],
    *,
    rename: Rename = str,
    ignore: Iterable[str] = (),
    build: Build | None = None,
) -> Loaded:
    """Load a checkpoint into a model that was built on the meta device (or not) and sharded by `apply_plan`.

    Every rank calls it and reads the slices that it holds, of even and ragged shards, on device and host. Element
    types are converted to the model's, between floating point types of two bytes and more; what was converted is in
    the result. A tied parameter is read once, from whichever of its names the files have.

    Args:
        applied: The sharded model. What of it is on the meta device is allocated first (`materialise`).
        path: A file, or a folder with files and maybe an index (`model.safetensors.index.json`).
        rename: Gives the name in the checkpoint of each name in the model.
        ignore: Globs of names that the checkpoint may have and the model has not.
        build: As `materialise` takes it.

    Raises:
        CheckpointUnreadable: there is no such checkpoint, or files of it are missing or damaged.
        CheckpointMismatch: names, shapes or element types do not fit.
        BuffersLost: see `materialise`.
    """
    with ExitStack() as stack:
        where: dict[str, Any] = {}
        for file in _files(Path(path)):
            opened = stack.enter_context(_opened(file))
            where |= dict.fromkeys(opened.keys(), opened)
        found = match(applied.model, where, rename=rename, ignore=ignore)
        for name, tensor in found:
            part = where[name].get_slice(name)
            check_like(name, tensor, tuple(part.get_shape()), _dtype(part))
        placed = match(_materialised(applied, build), where, rename=rename, ignore=ignore)
        loaded = Loaded()
        for name, tensor in placed:
            part = where[name].get_slice(name)
            loaded.read_bytes += write(tensor, part)
            loaded.note(_dtype(part), tensor.dtype)
    return loaded


def _opened(file: Path) -> Any:  # noqa: ANN401
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointUnreadable(f"{file}: {error}. It was cut short or is no safetensors file.") from error


def _materialised(applied: AppliedPlan, build: Build | None) -> torch.nn.Module:
    materialise(applied, build=build)
    return applied.model


def _dtype(part: Any) -> torch.dtype:  # noqa: ANN401
    """Of a slice, by reading nothing of it."""
    dtype = part[(slice(0, 0),) * len(part.get_shape())].dtype if part.get_shape() else part[...].dtype
    assert isinstance(dtype, torch.dtype)
    return dtype


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    index = path / _INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointUnreadable(f"{index} has no weight_map that can be read ({error!r}).") from error
        lacking = [name for name in names if not (path / name).is_file()]
        if lacking:
            raise CheckpointUnreadable(
                f"{index} names {', '.join(lacking[:3])}, which is not there. Copy it again."
            )
        return [path / name for name in names]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointUnreadable(f"{path} has no safetensors files. Give their folder, or one file.")
    return files
