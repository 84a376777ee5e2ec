"""Power cuts at every moment: what was not flushed may be on the disk, in part, or not at all.

Writes, flushes, renames and removals of a run are recorded in order. For each moment a folder is made with all
that was flushed by then, and of the rest a random choice: pages of writes to the state file, changes of names.
"""

import os
import random
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from runtime_client.offload.manifests import read_manifests
from runtime_client.offload.state_file import PAGE_BYTES
from tests.runtime_client.offload.training import build, found, on_disk, same, train

NUM_STEPS = 5


@dataclass
class Recorder:
    """What a run asks of the disk: `(what, name or offset, bytes)`."""

    events: list[tuple[str, object, bytes]] = field(default_factory=list)

    @contextmanager
    def watching(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        write, flush, rename, unlink = os.pwrite, os.fsync, Path.rename, Path.unlink

        def record_write(handle: int, content: memoryview, offset: int) -> int:
            self.events.append(("write", offset, bytes(content)))
            return write(handle, content, offset)

        def record_flush(handle: int) -> None:
            flush(handle)
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            if stat.S_ISDIR(os.fstat(handle).st_mode):
                self.events.append(("flush names", "", b""))
            elif path.suffix == ".bin":
                self.events.append(("flush", "", b""))
            else:
                self.events.append(("content", path.name, path.read_bytes()))

        def record_rename(path: Path, target: Path) -> Path:
            self.events.append(("rename", (path.name, target.name), b""))
            return rename(path, target)

        def record_unlink(path: Path) -> None:
            self.events.append(("unlink", path.name, b""))
            unlink(path)

        with patch.context() as patched:
            patched.setattr(os, "pwrite", record_write)
            patched.setattr(os, "fsync", record_flush)
            patched.setattr(Path, "rename", record_rename)
            patched.setattr(Path, "unlink", record_unlink)
            yield


def cut(events: list[tuple[str, object, bytes]], size_bytes: int, rng: random.Random, folder: Path) -> None:
    """Make the folder that a power cut after these events leaves."""
    data, names = bytearray(size_bytes), {}
    contents: dict[str, bytes] = {}
    writes: list[tuple[int, bytes]] = []
    changes: list[tuple[str, object]] = []

    def apply(change: tuple[str, object]) -> None:
        what, name = change
        if what == "rename":
            source, target = name  # type: ignore[misc]
            names[target] = contents[source]
        else:
            names.pop(name, None)

    for what, where, content in events:
        match what:
            case "write":
                assert isinstance(where, int)
                writes += [
                    (where + start, content[start : start + PAGE_BYTES])
                    for start in range(0, len(content), PAGE_BYTES)
                ]
            case "flush":
                for offset, page in writes:
                    data[offset : offset + len(page)] = page
                writes = []
            case "content":
                contents[str(where)] = content
            case "flush names":
                for change in changes:
                    apply(change)
                changes = []
            case _:
                changes.append((what, where))
    for offset, page in writes:
        if rng.random() < 0.5:
            data[offset : offset + len(page)] = page
    for change in changes:
        if rng.random() < 0.5:
            apply(change)
    folder.mkdir(parents=True)
    (folder / "state.bin").write_bytes(data)
    for name, content in names.items():
        (folder / str(name)).write_bytes(content)


def test_every_moment_leaves_a_complete_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, recorder = build(), Recorder()
    expected: dict[int, dict[str, Tensor]] = {}
    completed = [0]
    with recorder.watching(monkeypatch):
        optimizer = on_disk(model, tmp_path / "run")
        for step in range(NUM_STEPS):
            train(model, optimizer, range(step, step + 1))
            optimizer.settle()
            completed.append(len(recorder.events))
            expected[step + 1] = {name: value for name, value in found(model, optimizer).items() if " " in name}
        optimizer.close()
    size_bytes = (tmp_path / "run" / "state.bin").stat().st_size
    assert len(recorder.events) > NUM_STEPS * 6
    for moment in range(len(recorder.events) + 1):
        for seed in range(3):
            folder = tmp_path / f"{moment}-{seed}"
            cut(recorder.events[:moment], size_bytes, random.Random(f"{moment} {seed}"), folder)
            steps = [manifest.step for manifest in read_manifests(folder)]
            least = sum(moment >= end for end in completed[1:])
            assert max(steps, default=0) >= least, (moment, steps)
            if not steps:
                continue
            other = build()
            resumed = on_disk(other, folder, resume_step=max(steps))
            state = {name: value for name, value in found(other, resumed).items() if " " in name}
            assert same(state, expected[max(steps)]), (moment, seed, steps)
            resumed.close()


def test_the_disk_of_these_tests_does_lose_what_was_not_flushed(tmp_path: Path) -> None:
    """Else they would say nothing."""
    content = torch.arange(PAGE_BYTES, dtype=torch.uint8).numpy().tobytes()
    events = [("write", 0, content), ("unlink", "manifest-0.json", b"")]
    left = []
    for seed in range(20):
        cut(list(events), PAGE_BYTES, random.Random(seed), tmp_path / str(seed))
        left.append((tmp_path / str(seed) / "state.bin").read_bytes() == content)
    assert set(left) == {False, True}
