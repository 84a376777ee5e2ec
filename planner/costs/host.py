"""Copies between host and device, and what one rank has of its host: memory and cores."""

from dataclasses import dataclass, field
from typing import Literal, Self

from planner.costs.collectives import robust_basis
from planner.costs.efficiency import HOST_BYTES_PER_S_PER_CORE, HOST_LINK_PERCENT
from planner.costs.rates import NS_PER_S, time_ns
from planner.schema import (
    ClusterDescription,
    CopyMeasurement,
    DeviceSheet,
    InconsistentRequest,
    NumberSource,
    Profile,
    SourcedNumber,
)

NvmeDirection = Literal["nvme_read", "nvme_write"]
NVME_DIRECTIONS: tuple[NvmeDirection, ...] = ("nvme_read", "nvme_write")
Direction = Literal["host_to_device", "device_to_host"]
DIRECTIONS: tuple[Direction, ...] = ("host_to_device", "device_to_host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Bytes per second, and where the number comes from."""

    bytes_per_s: int
    source: NumberSource
    basis: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """The share of a host that each of its ranks has; of several node groups the smallest."""

    copies: dict[Direction, Rate]
    """Measured, else the attainable share of the device's host link; empty when neither is known."""
    device_name: str
    cores: int
    """Cores of the host."""
    parameters_per_s_per_core: int | None
    """Measured rate of an optimizer step, with all cores at work."""
    ranks: int
    """Ranks that share the host."""
    memory_bytes: int
    """Memory of the host for one rank; 0 when the cluster does not say."""
    nvme: dict[NvmeDirection, Rate] = field(default_factory=dict)
    """Of the drives of a host; measured, else the cluster's. Empty when neither is known."""
    nvme_bytes: int = 0
    """Room on the drives for one rank; 0 when the cluster does not say."""

    @classmethod
    def of(
        cls, cluster: ClusterDescription, device: DeviceSheet, profile: Profile | None, *, robust: bool = False
    ) -> Self:
        """What the cluster says of its hosts; the last bandwidth that was measured counts.

        Of copies that is of pinned memory, each direction by itself; a `robust` one is the 99th percentile.
        """
        ranks = cluster.node_groups[0].devices_per_node
        return cls(
            copies={
                direction: rate
                for direction in DIRECTIONS
                if (rate := _copy_rate(direction, device, profile, robust=robust)) is not None
            },
            device_name=device.name,
            cores=min(group.host_cores for group in cluster.node_groups),
            parameters_per_s_per_core=profile.cpu_optimizer_parameters_per_s_per_core if profile else None,
            ranks=ranks,
            memory_bytes=min(group.host_memory_bytes for group in cluster.node_groups) // ranks,
            nvme={
                direction: rate
                for direction in NVME_DIRECTIONS
                if (rate := _nvme_rate(direction, cluster, profile)) is not None
            },
            nvme_bytes=min(group.nvme_bytes for group in cluster.node_groups) // ranks,
        )

    def copy_ns(self, direction: Direction, size_bytes: int) -> int:
        """Copy of pinned memory; 0 only for nothing.

        Raises:
            InconsistentRequest: neither device nor profile has a bandwidth.
        """
        if not size_bytes:
            return 0
        if direction not in self.copies:
            raise InconsistentRequest(
                f"device {self.device_name!r} has no host_link_bytes_per_s and the profile no copy of direction "
                f"{direction!r}, so what is offloaded has no cost; give one of them, or keep it on the device"
            )
        return time_ns(size_bytes, self.copies[direction].bytes_per_s)

    def nvme_ns(self, direction: NvmeDirection, size_bytes: int) -> int:
        """Read or write by one rank, while all ranks of its host do the same.

        Raises:
            InconsistentRequest: neither cluster nor profile has a bandwidth.
        """
        if not size_bytes:
            return 0
        if direction not in self.nvme:
            raise InconsistentRequest(
                f"cluster.node_groups[..].{direction}_bytes_per_s is 0 and the profile has no copy of direction "
                f"{direction!r}, so optimizer state on nvme has no cost; give one of them, or keep it elsewhere"
            )
        return time_ns(size_bytes * self.ranks, self.nvme[direction].bytes_per_s)

    def nvme_sources(self) -> tuple[SourcedNumber, ...]:
        """Bandwidths of the drives of a host."""
        return tuple(
            SourcedNumber(
                name=f"{direction.replace('nvme_', 'NVMe ')} of a host",
                value=rate.bytes_per_s,
                unit="bytes_per_s",
                source=rate.source,
            )
            for direction, rate in self.nvme.items()
        )

    @property
    def parameters_per_s(self) -> int:
        """Measured rate of an optimizer step with the cores of one rank; errors as in `bytes_per_s`."""
        assert self.parameters_per_s_per_core is not None
        return self._of_all_cores(self.parameters_per_s_per_core)

    @property
    def bytes_per_s(self) -> int:
        """Memory traffic of an optimizer step with the cores of one rank.

        Raises:
            InconsistentRequest: the cluster does not say how many cores its hosts have.
        """
        return self._of_all_cores(HOST_BYTES_PER_S_PER_CORE)

    def sources(self) -> tuple[SourcedNumber, ...]:
        """Bandwidths of copies, and the rate of a core in an optimizer step."""
        copies = (
            SourcedNumber(
                name=f"copy {direction.replace('_', ' ')}",
                value=rate.bytes_per_s,
                unit="bytes_per_s",
                source=rate.source,
                basis=rate.basis,
            )
            for direction, rate in self.copies.items()
        )
        return (*copies, self._core_source())

    def _of_all_cores(self, rate_per_core: int) -> int:
        if not self.cores:
            raise InconsistentRequest(
                "cluster.node_groups[..].host_cores is 0, so an optimizer step on the host has no cost; say how "
                "many cores each node has, or keep all units on the device"
            )
        return max(1, rate_per_core * self.cores // self.ranks)

    def _core_source(self) -> SourcedNumber:
        if self.parameters_per_s_per_core is None:
            return SourcedNumber(
                name="host memory traffic of a core",
                value=HOST_BYTES_PER_S_PER_CORE,
                unit="bytes_per_s",
                source=NumberSource.ASSUMED,
            )
        return SourcedNumber(
            name="parameters updated by a core of the host",
            value=self.parameters_per_s_per_core,
            unit="per_s",
            source=NumberSource.MEASURED,
        )


def _nvme_rate(direction: NvmeDirection, cluster: ClusterDescription, profile: Profile | None) -> Rate | None:
    measured = [copy.bytes_per_s for copy in (profile.copies if profile else ()) if copy.direction == direction]
    if measured:
        return Rate(bytes_per_s=measured[-1], source=NumberSource.MEASURED)
    stated = min(
        group.nvme_read_bytes_per_s if direction == "nvme_read" else group.nvme_write_bytes_per_s
        for group in cluster.node_groups
    )
    return Rate(bytes_per_s=stated, source=NumberSource.ASSUMED) if stated else None


def _copy_rate(direction: Direction, device: DeviceSheet, profile: Profile | None, *, robust: bool) -> Rate | None:
    measured = [
        copy
        for copy in (profile.copies if profile else ())
        if copy.direction == direction and copy.pinned and not copy.together
    ]
    if measured:
        last = measured[-1]
        rate = min(last.bytes_per_s, _slow_rate(last)) if robust else last.bytes_per_s
        basis = robust_basis([last.quantiles]) if robust else ""
        return Rate(bytes_per_s=rate, source=NumberSource.MEASURED, basis=basis)
    if device.host_link_bytes_per_s is None:
        return None
    attainable = device.host_link_bytes_per_s * HOST_LINK_PERCENT // 100
    return Rate(bytes_per_s=max(1, attainable), source=NumberSource.ASSUMED)


def _slow_rate(copy: CopyMeasurement) -> int:
    """In the 99th percentile of the time of one copy."""
    if copy.quantiles is None or not copy.size_bytes:
        return copy.bytes_per_s
    return max(1, copy.size_bytes * NS_PER_S // max(1, copy.quantiles.p99))
