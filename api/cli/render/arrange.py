"""Placing parts on the page."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding


def indented(part: RenderableType) -> Padding:
    """Two cells to the right, no blanks after the text."""
    return Padding(part, (0, 0, 0, 2), expand=False)


def spaced(parts: Iterable[RenderableType | None]) -> RenderableType:
    """Parts with an empty line between them; None is left out."""
    shown: list[RenderableType] = [""]
    for part in parts:
        if part is not None:
            shown += [part, ""]
    return Group(*shown)
