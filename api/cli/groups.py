"""Commands that belong together, below one name."""

from typing import Any

import typer

HELP_OPTIONS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


def group(words: str) -> typer.Typer:
    """A group with its help; without a command it shows that."""
    return typer.Typer(help=words, no_args_is_help=True, rich_markup_mode="rich", context_settings=HELP_OPTIONS)
