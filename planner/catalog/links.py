"""Data sheets of links, as one device sees them: bytes per second in one direction, and latency.

Vendors quote NVLink, PCIe and Infinity Fabric as the sum of both directions and networks in bits; here all are
bytes per second in one direction. Latency is the time of one small ring step from device to device, kernel and
protocol included. No vendor publishes it, so it is an order of magnitude that a profile replaces.
"""

from planner.schema import LinkSheet, UnknownName

_NVLINK = "https://www.nvidia.com/en-us/data-center/nvlink/"
_PCIE = "https://pcisig.com/specifications"
_INFINITY_FABRIC = "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"
_INFINIBAND = "https://www.nvidia.com/en-us/networking/products/infiniband/"
_ETHERNET = "https://www.ieee802.org/3/"

_SHEETS = (
    LinkSheet(
        name="nvlink2",
        bytes_per_s=150_000_000_000,
        latency_ns=3_000,
        source=f"{_NVLINK} (V100: 300 GB/s both ways)",
    ),
    LinkSheet(
        name="nvlink3",
        bytes_per_s=300_000_000_000,
        latency_ns=2_500,
        source=f"{_NVLINK} (A100: 600 GB/s both ways)",
    ),
    LinkSheet(
        name="nvlink4",
        bytes_per_s=450_000_000_000,
        latency_ns=2_500,
        source=f"{_NVLINK} (H100 and H200: 900 GB/s both ways)",
    ),
    LinkSheet(
        name="nvlink5",
        bytes_per_s=900_000_000_000,
        latency_ns=2_500,
        source=f"{_NVLINK} (B200: 1.8 TB/s both ways)",
    ),
    LinkSheet(
        name="infinity-fabric",
        bytes_per_s=448_000_000_000,
        latency_ns=4_000,
        source=f"{_INFINITY_FABRIC} (MI300X: 7 links of 128 GB/s both ways)",
    ),
    LinkSheet(
        name="pcie4-x16",
        bytes_per_s=31_500_000_000,
        latency_ns=6_000,
        source=f"{_PCIE} (16 GT/s x 16 lanes, 128b/130b)",
    ),
    LinkSheet(
        name="pcie5-x16",
        bytes_per_s=63_000_000_000,
        latency_ns=6_000,
        source=f"{_PCIE} (32 GT/s x 16 lanes, 128b/130b)",
    ),
    LinkSheet(name="ib-hdr-200", bytes_per_s=25_000_000_000, latency_ns=6_000, source=f"{_INFINIBAND} (200 Gb/s)"),
    LinkSheet(name="ib-ndr-400", bytes_per_s=50_000_000_000, latency_ns=6_000, source=f"{_INFINIBAND} (400 Gb/s)"),
    LinkSheet(name="ib-xdr-800", bytes_per_s=100_000_000_000, latency_ns=6_000, source=f"{_INFINIBAND} (800 Gb/s)"),
    LinkSheet(name="ethernet-1", bytes_per_s=125_000_000, latency_ns=60_000, source=f"{_ETHERNET} (1 Gb/s)"),
    LinkSheet(name="ethernet-10", bytes_per_s=1_250_000_000, latency_ns=40_000, source=f"{_ETHERNET} (10 Gb/s)"),
    LinkSheet(name="ethernet-25", bytes_per_s=3_125_000_000, latency_ns=30_000, source=f"{_ETHERNET} (25 Gb/s)"),
    LinkSheet(name="ethernet-100", bytes_per_s=12_500_000_000, latency_ns=20_000, source=f"{_ETHERNET} (100 Gb/s)"),
    LinkSheet(name="ethernet-400", bytes_per_s=50_000_000_000, latency_ns=15_000, source=f"{_ETHERNET} (400 Gb/s)"),
    LinkSheet(
        name="loopback",
        bytes_per_s=1_000_000_000,
        latency_ns=50_000,
        source="assumed for gloo over TCP between processes of one machine; no data sheet exists, profile it",
    ),
)

_BY_NAME = {sheet.name: sheet for sheet in _SHEETS}


def link(name: str) -> LinkSheet:
    """Data sheet of a link by its catalog name.

    Raises:
        UnknownName: no such link; the message lists the known ones.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise UnknownName("link", name, list(_BY_NAME)) from None


def link_names() -> tuple[str, ...]:
    """Names that `link` knows, in the order of the catalog."""
    return tuple(_BY_NAME)
