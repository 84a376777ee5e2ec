"""Work that Python's garbage collector does not interrupt."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Frees come from reference counts alone, so at the same moment in each run; and nothing is timed with the
    collector, which always meets the same call where calls repeat.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
