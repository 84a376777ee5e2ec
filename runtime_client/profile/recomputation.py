"""Measures what a checkpointed call runs again in backward, where and as far as it does."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from runtime_client.profile.clock import StreamTimer


class Stretch(AbstractContextManager[None]):
    """Times what runs inside, on the clock of the device.

    Args:
        device: where the work runs.
        now_ns: the host's clock, for a CPU.
    """

    def __init__(self, device: torch.device, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._marks_ns: list[int] = []
        self._timer = None if device.type == "cpu" else StreamTimer()

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.__enter__()
        self._marks_ns.append(self._now_ns())

    def __exit__(self, *error: object) -> None:
        # Checkpointing leaves by an error as soon as it has all that backward needs.
        self._marks_ns.append(self._now_ns())
        if self._timer is not None:
            self._timer.__exit__()

    def duration_ns(self) -> int:
        """Nanoseconds of what ran inside."""
        if self._timer is not None:
            return self._timer.duration_ns()
        begin_ns, end_ns = self._marks_ns
        return end_ns - begin_ns


def checkpointed(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], stretch: Stretch) -> Any:  # noqa: ANN401
    """Output of a call that keeps its inputs alone; `stretch` times its recomputation."""
    return checkpoint(call, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), stretch), **kwargs)
