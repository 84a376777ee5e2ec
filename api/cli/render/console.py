"""The two consoles and the colours."""

import sys

from rich.console import Console, RenderableType
from rich.theme import Theme

THEME = Theme(
    {
        "error": "bold red",
        "warning": "yellow",
        "good": "green",
        "headline": "bold",
        "figure": "bold cyan",
        "title": "bold",
        "quiet": "dim",
        "command": "cyan",
    }
)


def stdout() -> Console:
    """Console of the answer."""
    return Console(file=sys.stdout, theme=THEME, highlight=False)


def stderr() -> Console:
    """Console of progress and errors."""
    return Console(file=sys.stderr, theme=THEME, highlight=False)


def show(part: RenderableType, console: Console | None = None) -> None:
    """Print a page. In a file or a pipe, lines end where their text ends."""
    console = console or stdout()
    if console.is_terminal:
        console.print(part, crop=False)
        return
    with console.capture() as captured:
        console.print(part, crop=False)
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def has_color(console: Console) -> bool:
    """Whether segments of a bar can be told apart by colour."""
    return console.color_system is not None and not console.no_color
