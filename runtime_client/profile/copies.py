"""Bandwidth of copies: within the device's memory, and to and from the host, pinned and not, alone and together."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from runtime_client.profile.clock import Clock, host_ns

_SIZE_BYTES = {"cpu": 2**26, "cuda": 2**28}
NUM_SAMPLES = 12
_WARM_UPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySamples:
    """Samples of one kind of copy; see `CopyMeasurement`."""

    direction: str
    size_bytes: int
    times_ns: list[int]
    pinned: bool = True
    together: bool = False


def measure_copies(device: torch.device) -> list[CopySamples]:
    """All kinds that the device has; on a CPU, whose memory is the host's, only within it."""
    size = _SIZE_BYTES[device.type]
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    times = _times(device, lambda: target.copy_(source))
    found = [CopySamples(direction="device_to_device", size_bytes=size, times_ns=times)]
    if device.type != "cpu":
        for pinned in (True, False):
            found += _with_host(source, target, pinned=pinned)
    return found


def _with_host(source: torch.Tensor, target: torch.Tensor, *, pinned: bool) -> list[CopySamples]:
    size, device = source.nbytes, source.device
    there, here = (torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2))
    down, up = (torch.cuda.Stream() for _ in range(2))  # type: ignore[no-untyped-call]

    def to_host() -> None:
        with torch.cuda.stream(down):
            there.copy_(source, non_blocking=True)

    def to_device() -> None:
        with torch.cuda.stream(up):
            target.copy_(here, non_blocking=True)

    def both() -> None:
        to_host()
        to_device()

    kinds: list[tuple[str, Callable[[], None]]] = [("device_to_host", to_host), ("host_to_device", to_device)]
    found = [
        CopySamples(direction=name, size_bytes=size, times_ns=_host_times(device, run), pinned=pinned)
        for name, run in kinds
    ]
    together_ns = _host_times(device, both)
    return found + [
        CopySamples(direction=name, size_bytes=size, times_ns=together_ns, pinned=pinned, together=True)
        for name, _ in kinds
    ]


def _times(device: torch.device, run: Callable[[], object]) -> list[int]:
    clock = Clock(device)
    return [clock.time_ns(run) for _ in range(NUM_SAMPLES + _WARM_UPS)][_WARM_UPS:]


def _host_times(device: torch.device, run: Callable[[], object]) -> list[int]:
    return [host_ns(device, run) for _ in range(NUM_SAMPLES + _WARM_UPS)][_WARM_UPS:]
