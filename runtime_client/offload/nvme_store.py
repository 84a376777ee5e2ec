"""State of units in a file on NVMe, read ahead and written behind through a bounded number of buffers."""

import fcntl
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from runtime_client.offload.errors import (
    StateBufferTooSmall,
    StateCorrupt,
    StateDiffers,
    StateDirectoryInUse,
    StateExists,
    StateMissing,
    StateNotWritten,
)
from runtime_client.offload.manifests import (
    Manifest,
    has_manifests,
    read_manifests,
    remove_manifest,
    write_manifest,
)
from runtime_client.offload.staging import Staging, size_of, views
from runtime_client.offload.state_file import StateFile
from runtime_client.offload.unit_step import UnitStep
from runtime_client.ragged.tensor import RaggedTensor

NUM_BUFFERS = 3
"""One that is read into, one whose unit is updated, one that is written."""
_FILE = "state.bin"
_LOCK = "lock"


class NvmeStore:
    """Keeps the state of the last complete step, and writes that of the next beside it (`manifests`).

    Args:
        units: of the optimizer.
        folder: of this rank alone; made where it is not there.
        num_buffers: units whose state is in host memory at a time, at most.
        buffer_bytes: of each buffer; what the largest unit needs by default.
        resume_step: go on with the state of this step, which is then verified; None starts anew.

    Raises:
        StateBufferTooSmall: a buffer does not hold the largest unit.
        StateDirectoryInUse: another process has the folder open.
        StateExists: there is state of an earlier run, and nobody asked for it.
        StateMissing, StateDiffers, StateCorrupt: the state of `resume_step` is not there, not of these units, or
            not as it was written.
        StateNotWritten: the folder cannot be made or written to, or the disk has too little room.
    """

    def __init__(
        self,
        units: Sequence[UnitStep],
        folder: Path,
        *,
        num_buffers: int = NUM_BUFFERS,
        buffer_bytes: int | None = None,
        resume_step: int | None = None,
    ) -> None:
        self._units, self._folder = tuple(units), folder
        self._like = [unit.state_like for unit in units]
        sizes = [size_of(like) for like in self._like]
        self._staging = _buffers(units, sizes, num_buffers, buffer_bytes)
        self._is_closed = False
        self._lock = _locked(folder)
        try:
            self._last = self._found(resume_step)
            self._file = StateFile(folder / _FILE, sizes)
            self._written: dict[int, tuple[int, int]] = {}
            if resume_step is not None:
                self._resume()
        except BaseException:
            os.close(self._lock)
            raise

    def load(self, unit: int) -> Tensor:
        """Borrow a buffer with the state of the last complete step; errors as of `StateFile.read`."""
        buffer = self._staging.borrow()
        try:
            place = self._last.slots[unit]
            if place is None:
                buffer.zero_()
            else:
                self._file.read(unit, place[0], buffer, place[1])
        except BaseException:
            self._staging.give_back(buffer)
            raise
        return buffer

    def store(self, unit: int, buffer: Tensor, *, is_updated: bool) -> None:
        """Write a unit beside its last state; errors as of `StateFile.write`."""
        try:
            if is_updated:
                place = self._last.slots[unit]
                slot = 0 if place is None else 1 - place[0]
                self._written[unit] = (slot, self._file.write(unit, slot, buffer))
        finally:
            self._staging.give_back(buffer)

    def view(self, unit: int) -> list[Tensor]:
        """Tensors that are read from the file when they are used; good until the second step from now."""
        place = self._last.slots[unit]
        if place is None:
            return [torch.zeros(like.shape, dtype=like.dtype) for like in self._like[unit]]
        return views(self._file.mapped(unit, *place), self._like[unit])

    @property
    def num_steps(self) -> int:
        """Those of the step that it goes on from."""
        return self._last.step

    def replace(self, states: Sequence[Sequence[Tensor] | None], *, num_steps: int) -> None:
        """Take over the state of all units as a complete step."""
        self.begin_step()
        self._last = replace(
            self._last,
            slots=tuple(
                None if state is None else place for place, state in zip(self._last.slots, states, strict=True)
            ),
        )
        for unit, state in enumerate(states):
            if state is None:
                continue
            buffer = self._staging.borrow()
            for place, tensor in zip(views(buffer, self._like[unit]), state, strict=True):
                place.copy_(tensor)
            self.store(unit, buffer, is_updated=True)
        self.end_step(num_steps)

    def begin_step(self) -> None:
        """Forget the older of two complete steps, whose place the next one takes."""
        self._written = {}
        remove_manifest(self._folder, self._last.number + 1)

    def end_step(self, num_steps: int) -> None:
        """Flush what was written and make the step complete.

        Raises:
            StateNotWritten, StateMissing, StateCorrupt: as of `StateFile.flush`.
        """
        self._file.flush()
        slots = tuple(self._written.get(unit, place) for unit, place in enumerate(self._last.slots))
        steps = tuple(member.steps.item() for unit in self._units for member in unit.members)
        made = Manifest(
            number=self._last.number + 1,
            step=num_steps,
            layout=self._last.layout,
            slots=slots,
            steps=steps,
        )
        write_manifest(self._folder, made)
        self._last = made

    def close(self) -> None:
        """Let go of the file; the last complete step stays. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._file.close()
            os.close(self._lock)

    def _found(self, resume_step: int | None) -> Manifest:
        """Where to begin: nothing, or a step that was complete."""
        layout = _layout(self._units)
        if resume_step is None:
            if has_manifests(self._folder):
                steps = [manifest.step for manifest in read_manifests(self._folder)]
                raise StateExists(
                    f"{self._folder} holds optimizer state of an earlier run (steps {steps}): go on with it by "
                    "resume_step, or remove the folder"
                )
            return Manifest(number=0, step=0, layout=layout, slots=(None,) * len(self._units), steps=())
        whole = {manifest.step: manifest for manifest in read_manifests(self._folder)}
        if resume_step not in whole or not (self._folder / _FILE).exists():
            raise StateMissing(
                f"{self._folder} has no complete optimizer state of step {resume_step} (it has {sorted(whole)}). "
                "Go on from a checkpoint, with an empty state directory."
            )
        if whole[resume_step].layout != layout:
            raise StateDiffers(
                f"{self._folder} holds the optimizer state of another model, plan, or optimizer than this one. Go "
                "on from a checkpoint, with an empty state directory."
            )
        return whole[resume_step]

    def _resume(self) -> None:
        """Verify all of it, forget what came after, and count on from there."""
        for unit in range(len(self._units)):
            buffer = self.load(unit)
            self._staging.give_back(buffer)
        remove_manifest(self._folder, self._last.number + 1)
        members = [member for unit in self._units for member in unit.members]
        if len(self._last.steps) != len(members):
            raise StateCorrupt(f"{self._folder}: the manifest counts {len(self._last.steps)} parameters")
        for member, steps in zip(members, self._last.steps, strict=True):
            member.steps.fill_(steps)


def rank_folder(directory: Path) -> Path:
    """Where a rank keeps its state."""
    return directory / f"rank-{dist.get_rank() if dist.is_initialized() else 0:05d}"


def resumable_step(directory: str | os.PathLike[str]) -> int | None:
    """The latest step of which every rank has the complete state; None where there is none. Every rank calls it.

    A rank may have completed one step more than another when a job dies.
    """
    own = [manifest.step for manifest in read_manifests(rank_folder(Path(directory)))]
    found: list[list[int] | None] = [own]
    if dist.is_initialized():
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, own)
    return max(set.intersection(*(set(steps or ()) for steps in found)), default=None)


def _buffers(
    units: Sequence[UnitStep], sizes: Sequence[int], num_buffers: int, buffer_bytes: int | None
) -> Staging:
    largest = max(sizes, default=0)
    if buffer_bytes is not None and buffer_bytes < largest:
        name = units[sizes.index(largest)].name
        raise StateBufferTooSmall(
            f"buffer_bytes is {buffer_bytes}, but the state of unit {name!r} has {largest} bytes on this rank. "
            "Give each buffer as much, or plan smaller units."
        )
    if num_buffers < 1:
        raise StateBufferTooSmall(f"num_buffers is {num_buffers}: at least one is needed, three to overlap")
    return Staging(num_buffers, largest if buffer_bytes is None else buffer_bytes, pin=False)


def _locked(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StateNotWritten(
            f"{folder} cannot be used as a state directory ({error.strerror}): name one that this rank may write to"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise StateDirectoryInUse(
            f"{folder} is in use by another process, or by an optimizer of this one that was not closed: "
            "end it, or name another state directory"
        ) from None
    return handle


def _held(parameter: Tensor) -> list[Any]:
    """Which part of a parameter this rank has: shards of one shape may be of different parts."""
    if isinstance(parameter, RaggedTensor):
        return [list(parameter.shape), parameter.spread.start]
    if not isinstance(parameter, DTensor):
        return [list(parameter.shape)]
    mesh = parameter.device_mesh
    return [
        list(parameter.shape),
        [
            [placement.dim, mesh.size(dim), mesh.get_local_rank(dim)]
            for dim, placement in enumerate(parameter.placements)
            if isinstance(placement, Shard)
        ],
    ]


def _layout(units: Sequence[UnitStep]) -> str:
    """Identity of which tensors are where."""
    content = [
        [
            unit.name,
            [
                [_held(member.parameter), list(member.local.shape), str(member.local.dtype), member.moments]
                for member in unit.members
            ],
        ]
        for unit in units
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
