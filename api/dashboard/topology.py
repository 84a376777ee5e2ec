"""The topology of a cluster as a drawing: nodes with their devices, and links as wide as they are fast.

Groups of many nodes show the first ones and how many more there are. Lengths are user units of the SVG; colours
and strokes come from the style sheet.
"""

from dataclasses import dataclass

from api.http.regenerations.views import device_name, memory_of
from api.quantities import count, size
from planner.catalog.links import link, link_names
from planner.schema import ClusterDescription, LinkSheet, NodeGroup

MAX_NODES, MAX_DEVICES = 4, 8
NODE_WIDTH, NODE_GAP, DEVICE, DEVICE_GAP, PADDING = 172, 16, 30, 8, 12
HEADER, BUS_GAP = 34, 26
_COLUMNS = 4
_RATES = ((2.5e11, 4), (5e10, 3), (1e10, 2))
"""Bytes/s from which a link is drawn so wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with words in it."""

    x: int
    y: int
    width: int
    height: int
    words: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A link, from one point to another."""

    x1: int
    y1: int
    x2: int
    y2: int
    width: int
    kind: str
    """`intra`, `inter` or `rail`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A link of the cluster, for the table beside the drawing."""

    words: str
    name: str
    sheet: LinkSheet | None
    """None where the catalog has no such link."""
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Shapes in an area of `width` by `height`, what they show in words, and the links with their numbers."""

    width: int
    height: int
    nodes: list[Box]
    devices: list[Box]
    lines: list[Line]
    levels: list[Level]
    words: str


def drawing_of(cluster: ClusterDescription) -> Drawing:
    """Draw a cluster: node groups side by side below the links between nodes."""
    levels = _levels(cluster)
    networks = [level for level in levels if level.kind != "intra"]
    top = BUS_GAP * len(networks) + (PADDING if networks else 0)
    nodes: list[Box] = []
    devices: list[Box] = []
    lines: list[Line] = []
    x, height = 0, 0
    for index, group in enumerate(cluster.node_groups):
        for position in range(min(group.num_nodes, MAX_NODES)):
            node = _node(group, index, position, x, top, len(cluster.node_groups))
            nodes.append(node)
            devices += _devices(group, node)
            lines.append(_inside(group, node))
            x, height = x + NODE_WIDTH + NODE_GAP, max(height, top + node.height)
        if group.num_nodes > MAX_NODES:
            more = Box(
                x=x,
                y=top,
                width=NODE_WIDTH // 2,
                height=64,
                words=f"+ {group.num_nodes - MAX_NODES:,}",
                detail="nodes",
            )
            nodes.append(more)
            x, height = x + more.width + NODE_GAP, max(height, top + more.height)
    width = max(x - NODE_GAP, 1)
    for number, level in enumerate(networks):
        lines += _between(nodes, number, level, width)
    return Drawing(
        width=width,
        height=height,
        nodes=nodes,
        devices=devices,
        lines=lines,
        levels=levels,
        words=_words(cluster, levels),
    )


def _node(group: NodeGroup, index: int, position: int, x: int, y: int, num_groups: int) -> Box:
    shown = min(group.devices_per_node, MAX_DEVICES)
    rows = -(-shown // _COLUMNS)
    name = f"node {position}" if num_groups == 1 else f"group {index}, node {position}"
    height = HEADER + rows * (DEVICE + DEVICE_GAP) + PADDING
    more = group.devices_per_node - shown
    return Box(x=x, y=y, width=NODE_WIDTH, height=height, words=name, detail=f"+ {more} devices" if more else "")


def _devices(group: NodeGroup, node: Box) -> list[Box]:
    return [
        Box(
            x=node.x + PADDING + (number % _COLUMNS) * (DEVICE + DEVICE_GAP),
            y=node.y + HEADER + (number // _COLUMNS) * (DEVICE + DEVICE_GAP),
            width=DEVICE,
            height=DEVICE,
            words=str(number),
        )
        for number in range(min(group.devices_per_node, MAX_DEVICES))
    ]


def _inside(group: NodeGroup, node: Box) -> Line:
    y = node.y + HEADER - 6
    right = node.x + node.width - PADDING
    return Line(x1=node.x + PADDING, y1=y, x2=right, y2=y, width=_stroke(_sheet(group.intra_node)), kind="intra")


def _between(nodes: list[Box], number: int, level: Level, width: int) -> list[Line]:
    y, stroke = BUS_GAP * number + 10, _stroke(level.sheet)
    bus = Line(x1=0, y1=y, x2=width, y2=y, width=stroke, kind=level.kind)
    offset = 10 * number
    drops = [
        Line(x1=x, y1=y, x2=x, y2=node.y, width=stroke, kind=level.kind)
        for node in nodes
        for x in (node.x + node.width // 2 + offset,)
    ]
    return [bus, *drops]


def _stroke(sheet: LinkSheet | None) -> int:
    return next((width for rate, width in _RATES if sheet is not None and sheet.bytes_per_s >= rate), 1)


def _levels(cluster: ClusterDescription) -> list[Level]:
    several = len(cluster.node_groups) > 1
    named = [
        ("between nodes", cluster.inter_node, "inter"),
        ("between equal devices of nodes", cluster.rail, "rail"),
    ]
    for index, group in enumerate(cluster.node_groups):
        named.append((f"in nodes of group {index}" if several else "in a node", group.intra_node, "intra"))
    found = []
    for words, given, kind in named:
        if given is not None:
            name = given if isinstance(given, str) else given.name
            found.append(Level(words=words, name=name, sheet=_sheet(given), kind=kind))
    return found


def _sheet(given: str | LinkSheet) -> LinkSheet | None:
    if isinstance(given, LinkSheet):
        return given
    return link(given) if given in link_names() else None


def _words(cluster: ClusterDescription, levels: list[Level]) -> str:
    groups = [
        f"{count(group.num_nodes, 'node')} of {count(group.devices_per_node, 'device')} {device_name(group)}"
        + ("" if (memory_bytes := memory_of(group)) is None else f" with {size(memory_bytes)} each")
        for group in cluster.node_groups
    ]
    links = [f"{level.name} {level.words}" for level in levels]
    return "; ".join([*groups, *links])
