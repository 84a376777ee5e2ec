"""Changes of directories that outlive a power cut."""

import os
from pathlib import Path


def flush_directory(directory: Path) -> None:
    """Wait until the names in a directory, new, changed or gone, are on the disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
