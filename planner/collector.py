"""Work that Python's garbage collector does not interrupt."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Frees come from reference counts alone, at the same moment in each run; large structures are not searched
    for cycles; nothing is timed with the collector, which meets the same call each time where calls repeat.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
