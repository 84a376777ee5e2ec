"""What `shardwright catalog` prints."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.cli.render.arrange import indented, spaced
from api.quantities import duration, significant
from planner.schema import DeviceSheet, DType, LinkSheet


def catalog_page(
    devices: Sequence[DeviceSheet], links: Sequence[LinkSheet], *, models: Sequence[str], clusters: Sequence[str]
) -> RenderableType:
    """Devices, links, and the documents that come with the package."""
    return spaced(
        (
            Group(Text("Devices", style="title"), indented(_devices(devices))),
            Group(Text("Links, one direction", style="title"), indented(_links(links))),
            Group(
                Text("Shipped documents", style="title"),
                *(
                    indented(Text.assemble((f"{what:<10}", "quiet"), "  ".join(names) or "none"))
                    for what, names in (("models", models), ("clusters", clusters))
                ),
            ),
        )
    )


def _devices(devices: Sequence[DeviceSheet]) -> Table:
    table = _table("name", ("memory GB", "GB/s", "bf16 TFLOP/s", "fp32 TFLOP/s", "host GB/s"))
    for sheet in devices:
        table.add_row(
            sheet.name,
            significant(sheet.memory_bytes / 1e9),
            f"{sheet.memory_bytes_per_s / 1e9:,.0f}",
            _tera(sheet.flops_per_s.get(DType.BFLOAT16)),
            _tera(sheet.flops_per_s.get(DType.FLOAT32)),
            "-" if sheet.host_link_bytes_per_s is None else significant(sheet.host_link_bytes_per_s / 1e9),
        )
    return table


def _links(links: Sequence[LinkSheet]) -> Table:
    table = _table("name", ("GB/s", "latency"))
    for sheet in links:
        table.add_row(sheet.name, significant(sheet.bytes_per_s / 1e9), duration(sheet.latency_ns))
    return table


def _table(first: str, numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="quiet")
    table.add_column(first, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def _tera(flops_per_s: int | None) -> str:
    return "-" if flops_per_s is None else significant(flops_per_s / 1e12)
