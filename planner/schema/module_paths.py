"""Dotted paths of modules."""

from collections.abc import Iterator


def modules_above(path: str) -> Iterator[str]:
    """Paths of the modules around a module or parameter, the innermost first, the root left out."""
    while path := path.rpartition(".")[0]:
        yield path
