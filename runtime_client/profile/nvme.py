"""Bandwidth of a drive, past the system's cache: in a directory that the user names."""

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from runtime_client.errors import ClientError
from runtime_client.profile.copies import CopySamples

_CHUNK_BYTES = 2**24
_NUM_CHUNKS = 16
_NUM_SAMPLES = 5


def measure_drive(folder: Path) -> list[CopySamples]:
    """Writes and reads of a file of 256 MiB, which is deleted again.

    Where the file system takes no direct access, writes end when the data is on the drive, and the cache is dropped
    before reads.

    Raises:
        ClientError: the folder cannot be written to, or has no room.
    """
    size = _CHUNK_BYTES * _NUM_CHUNKS
    try:
        with tempfile.TemporaryDirectory(prefix="shardwright-", dir=folder) as place:
            path = Path(place) / "probe"
            writes = [_timed(lambda: _write(path)) for _ in range(_NUM_SAMPLES + 1)][1:]
            reads = [_timed(lambda: _read(path)) for _ in range(_NUM_SAMPLES + 1)][1:]
    except OSError as error:
        raise ClientError(
            f"--nvme {folder}: {error.strerror}; name a folder on the drive with {size >> 20} MiB free"
        ) from error
    return [
        CopySamples(direction="nvme_write", size_bytes=size, times_ns=writes),
        CopySamples(direction="nvme_read", size_bytes=size, times_ns=reads),
    ]


def _timed(run: Callable[[], None]) -> int:
    start_ns = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start_ns


def _write(path: Path) -> None:
    with _chunk() as chunk:
        chunk.write(os.urandom(2**20) * (_CHUNK_BYTES // 2**20))
        drive = _open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            for _ in range(_NUM_CHUNKS):
                os.write(drive, chunk)
            os.fsync(drive)
        finally:
            os.close(drive)


def _read(path: Path) -> None:
    with _chunk() as chunk:
        drive = _open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(drive, 0, 0, os.POSIX_FADV_DONTNEED)
            for _ in range(_NUM_CHUNKS):
                os.readv(drive, [chunk])
        finally:
            os.close(drive)


def _chunk() -> mmap.mmap:
    """Memory that begins at a page, as direct access needs it."""
    return mmap.mmap(-1, _CHUNK_BYTES)


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:
        return os.open(path, flags, 0o600)
