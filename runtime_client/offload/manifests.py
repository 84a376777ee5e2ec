"""Which slots of the state file belong to a complete step: small files that are there whole or not at all.

[Note: generations]
A unit's new state goes into the slot that the last complete step does not use. When all units of a step are
written and flushed, a manifest names the slots, with a checksum for each. It is written under another name,
flushed, renamed, and the directory flushed: the step is complete from then on. Two manifests are kept. The older
one is removed, and that flushed, before the first write that could touch its slots. So whenever the process or the
machine dies, the manifest of at least one complete step is there with all of its data, once a first step was
complete.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from runtime_client.durable import flush_directory
from runtime_client.offload.state_file import not_written

_FORMAT = 1
_PREFIX = "manifest-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete step."""

    number: int
    """Of the generation; each is one more than the one before."""
    step: int
    """Steps that the optimizer had done."""
    layout: str
    """Identity of what is in the file and where."""
    slots: tuple[tuple[int, int] | None, ...]
    """`(slot, checksum)` of each unit; None where it has no state yet."""
    steps: tuple[float, ...]
    """How often each parameter was updated."""

    def text(self) -> str:
        """With a checksum of itself."""
        content = json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True)
        return json.dumps({"sha256": hashlib.sha256(content.encode()).hexdigest(), "content": content})

    @classmethod
    def of(cls, text: str) -> "Manifest | None":
        """A manifest that is whole; None of anything else."""
        try:
            document = json.loads(text)
            content = document["content"]
            if hashlib.sha256(content.encode()).hexdigest() != document["sha256"]:
                return None
            fields = json.loads(content)
            if fields.pop("format") != _FORMAT:
                return None
            slots = tuple(None if slot is None else (int(slot[0]), int(slot[1])) for slot in fields.pop("slots"))
            return cls(slots=slots, steps=tuple(map(float, fields.pop("steps"))), **fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def read_manifests(folder: Path) -> list[Manifest]:
    """Those of a folder that are whole, oldest first."""
    found = [Manifest.of(path.read_text(errors="replace")) for path in _paths(folder) if path.exists()]
    return sorted((manifest for manifest in found if manifest is not None), key=lambda manifest: manifest.number)


def has_manifests(folder: Path) -> bool:
    """Whether there are any, whole or not."""
    return any(path.exists() for path in _paths(folder))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make a step complete; its data must be flushed.

    Raises:
        StateNotWritten: the disk is full or refuses.
    """
    target = _path(folder, manifest.number)
    unfinished = target.with_suffix(".part")
    try:
        with unfinished.open("w") as file:
            file.write(manifest.text())
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(target)
        flush_directory(folder)
    except OSError as error:
        raise not_written(target, "the manifest", error) from error


def remove_manifest(folder: Path, number: int) -> None:
    """Forget a generation, or what is left in the place of one, before its slots are written."""
    path = _path(folder, number)
    if path.exists():
        path.unlink()
        flush_directory(folder)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{_PREFIX}{number % 2}.json"


def _paths(folder: Path) -> list[Path]:
    return [_path(folder, number) for number in range(2)]
