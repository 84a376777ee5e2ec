"""The file that holds the state of all units of a rank, twice, and the bytes that go in and out of it."""

import ctypes
import errno
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from runtime_client.offload.errors import StateCorrupt, StateMissing, StateNotWritten

PAGE_BYTES = 4096
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NUM_SLOTS = 2


class StateFile:
    """Two slots for each unit, at fixed places, allocated when the file is made so that it never grows.

    Args:
        path: of the file; made where it is not there.
        sizes_bytes: of the state of each unit.

    Raises:
        StateNotWritten: the disk has too little room.
    """

    def __init__(self, path: Path, sizes_bytes: Sequence[int]) -> None:
        self.path = path
        self._sizes = tuple(sizes_bytes)
        self._starts = [0]
        for size in self._sizes:
            self._starts.append(self._starts[-1] + NUM_SLOTS * _pages(size))
        is_new = not path.exists()
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if self.total_bytes:
                os.posix_fallocate(self._handle, 0, self.total_bytes)
        except OSError as error:
            self.close()
            if is_new:
                path.unlink()
            raise not_written(path, f"{self.total_bytes} bytes", error) from error

    @property
    def total_bytes(self) -> int:
        """Of the file."""
        return self._starts[-1]

    def read(self, unit: int, slot: int, buffer: Tensor, checksum: int) -> None:
        """Fill the start of a buffer of bytes with the state of a unit.

        Raises:
            StateMissing: the file cannot be read.
            StateCorrupt: it is shorter than it was, or holds something else than was written.
        """
        target, start, done = _memory(buffer, self._sizes[unit]), self._start(unit, slot), 0
        while done < len(target):
            try:
                read = os.preadv(self._handle, [target[done:]], start + done)
            except OSError as error:
                raise StateMissing(f"{self.path} cannot be read: {error.strerror}. {_REMEDY}") from error
            if not read:
                raise StateCorrupt(
                    f"{self.path} was truncated to fewer than {start + len(target)} bytes. {_REMEDY}"
                )
            done += read
        self._check(zlib.crc32(target), checksum, unit, start)

    def write(self, unit: int, slot: int, buffer: Tensor) -> int:
        """Write the state of a unit; returns its checksum.

        Raises:
            StateNotWritten: the disk is full or refuses.
        """
        source, start, done = _memory(buffer, self._sizes[unit]), self._start(unit, slot), 0
        while done < len(source):
            try:
                done += os.pwrite(self._handle, source[done:], start + done)
            except OSError as error:
                raise not_written(self.path, f"{len(source)} bytes of unit {unit}", error) from error
        return zlib.crc32(source)

    def mapped(self, unit: int, slot: int, checksum: int) -> Tensor:
        """The state of a unit as bytes that are read from the file when they are looked at; errors as in `read`."""
        if not self._sizes[unit]:
            return torch.empty(0, dtype=torch.uint8)
        if self.path.stat().st_size < self.total_bytes:
            raise StateCorrupt(f"{self.path} was truncated to fewer than {self.total_bytes} bytes. {_REMEDY}")
        whole = torch.from_file(str(self.path), shared=False, size=self.total_bytes, dtype=torch.uint8)
        start = self._start(unit, slot)
        found = whole[start : start + self._sizes[unit]]
        self._check(zlib.crc32(_memory(found, self._sizes[unit])), checksum, unit, start)
        return found

    def flush(self) -> None:
        """Wait until all that was written is on the disk, under the name of the file.

        Raises:
            StateNotWritten: the disk refuses.
            StateMissing: the file was removed or replaced meanwhile.
        """
        try:
            os.fsync(self._handle)
        except OSError as error:
            raise not_written(self.path, "what was written", error) from error
        own = os.fstat(self._handle)
        there = self.path.stat() if self.path.exists() else None
        if there is None or (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino):
            raise StateMissing(f"{self.path} was removed or replaced while it was in use. {_REMEDY}")
        if own.st_size < self.total_bytes:
            raise StateCorrupt(f"{self.path} was truncated to {own.st_size} bytes while it was in use. {_REMEDY}")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._handle)

    def _start(self, unit: int, slot: int) -> int:
        return self._starts[unit] + slot * _pages(self._sizes[unit])

    def _check(self, found: int, checksum: int, unit: int, start: int) -> None:
        if found != checksum:
            raise StateCorrupt(
                f"{self.path}: the state of unit {unit}, {self._sizes[unit]} bytes at {start}, has checksum "
                f"{found:08x} and was written with {checksum:08x}. {_REMEDY}"
            )


_REMEDY = "Go on from a checkpoint, with an empty state directory."


def not_written(path: Path, what: str, error: OSError) -> StateNotWritten:
    """Why something did not get into a file."""
    if error.errno in _FULL:
        room = os.statvfs(path.parent)
        return StateNotWritten(
            f"{path}: no room for {what} ({error.strerror}; {room.f_bavail * room.f_frsize} bytes are free). Free "
            "some or name another state directory; the state of the last complete step is still there."
        )
    return StateNotWritten(
        f"{path}: {what} could not be written ({error.strerror}). The state of the last complete step is still "
        "there."
    )


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _memory(buffer: Tensor, size_bytes: int) -> memoryview:
    """The start of a buffer of bytes as memory; the buffer must outlive it."""
    if not size_bytes:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * size_bytes).from_address(buffer.data_ptr())).cast("B")
