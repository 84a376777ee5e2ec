"""Where a launcher wants optimizer state on NVMe to be."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.schema import Decisions, StateTier
from runtime_client.offload.errors import StateDirectoryMissing
from runtime_client.offload.nvme_store import NUM_BUFFERS, NvmeStore, rank_folder
from runtime_client.offload.store import HostStore, StateStore
from runtime_client.offload.unit_step import UnitStep
from runtime_client.offload.units import optimizer_tier


@dataclass(frozen=True, slots=True)
class StateFiles:
    """Files of optimizer state; each rank makes a folder of its own in the directory."""

    directory: str | os.PathLike[str]
    """On a drive of the host that the rank runs on."""
    resume_step: int | None = None
    """Go on with the state of this step (`nvme_store.resumable_step`); None starts anew."""
    num_buffers: int = NUM_BUFFERS
    """Units whose state is in host memory at a time, at most."""
    buffer_bytes: int | None = None
    """Of each buffer; by default what the largest unit needs on this rank."""


def store_of(decisions: Decisions, files: StateFiles | None) -> Callable[[Sequence[UnitStep]], StateStore]:
    """What makes the store that the plan asks for.

    Raises:
        StateDirectoryMissing: it is on NVMe, and there are no files.
    """
    if optimizer_tier(decisions) is not StateTier.NVME:
        return HostStore
    if files is None:
        raise StateDirectoryMissing(
            "the plan keeps optimizer state on nvme: name a directory there, "
            "AppliedPlan.optimizer(..., state_files=StateFiles('/path'))"
        )
    folder = rank_folder(Path(files.directory))

    def make(units: Sequence[UnitStep]) -> StateStore:
        return NvmeStore(
            units,
            folder,
            num_buffers=files.num_buffers,
            buffer_bytes=files.buffer_bytes,
            resume_step=files.resume_step,
        )

    return make
