"""Time of kernels that only move device memory: copy-in, copy-out, chunk and cast."""

from dataclasses import dataclass
from typing import Self

from planner.costs.efficiency import MEMORY_PERCENT
from planner.costs.rates import time_ns
from planner.schema import DeviceSheet, NumberSource, Profile, SourcedNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCosts:
    """Bytes read and bytes written share one bandwidth."""

    moved_bytes_per_s: int
    source: NumberSource

    @classmethod
    def of(cls, device: DeviceSheet, profile: Profile | None) -> Self:
        """The profile's last `device_to_device` bandwidth, else the attainable share of the data sheet's.

        A measured copy of N bytes per second reads N and writes N, so it moves twice as many.
        """
        measured = [
            copy.bytes_per_s for copy in (profile.copies if profile else ()) if copy.direction == "device_to_device"
        ]
        if measured:
            return cls(moved_bytes_per_s=2 * measured[-1], source=NumberSource.MEASURED)
        attainable = device.memory_bytes_per_s * MEMORY_PERCENT // 100
        return cls(moved_bytes_per_s=max(1, attainable), source=NumberSource.ASSUMED)

    def copy_ns(self, read_bytes: int, write_bytes: int) -> int:
        """Nanoseconds, rounded up; 0 only when nothing moves."""
        return time_ns(read_bytes + write_bytes, self.moved_bytes_per_s)

    def sources(self) -> tuple[SourcedNumber, ...]:
        """The bandwidth."""
        return (
            SourcedNumber(
                name="device memory bandwidth", value=self.moved_bytes_per_s, unit="bytes_per_s", source=self.source
            ),
        )
