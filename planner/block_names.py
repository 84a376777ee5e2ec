"""Names of repeated blocks, folded for reading: `layers.0`, `layers.1`, `layers.2` become `layers.0-2`."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

ROOT_NAME = "(root)"
"""How the empty path is written for people."""
_MAX_RANGES = 4
_NUMBER = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")


def template(path: str) -> str:
    """The path with its first block number replaced by `*`.

    >>> template("layers.3.attn"), template("norm"), template("")
    ('layers.*.attn', 'norm', '(root)')
    """
    return _NUMBER.sub("*", path, count=1) or ROOT_NAME


def block_index(path: str) -> int | None:
    """The first block number in the path; None when it has none."""
    match = _NUMBER.search(path)
    return None if match is None else int(match[0])


def fold_names(paths: Iterable[str]) -> str:
    """Paths with block numbers joined, families in the order in which they appear.

    >>> fold_names(["layers.0", "layers.1", "layers.2", "norm", ""])
    'layers.0-2, norm, (root)'
    """
    return ", ".join(fold_families(paths))


def fold_families(paths: Iterable[str]) -> list[str]:
    """One folded name per family of paths; see `fold_names`."""
    families: dict[str, set[int]] = {}
    for path in paths:
        index = block_index(path)
        families.setdefault(template(path), set()).update([] if index is None else [index])
    return [
        family.replace("*", index_words(sorted(indices)), 1) if indices else family
        for family, indices in families.items()
    ]


def index_words(indices: Sequence[int]) -> str:
    """Sorted numbers as ranges or as an arithmetic progression; many ranges are only counted.

    >>> index_words([0, 1, 2, 5]), index_words([0, 3, 6, 9]), index_words([0, 2, 3, 5, 7, 9])
    ('0-2,5', '0,3..9', '[6 of 0-9]')
    """
    steps = {after - before for before, after in pairwise(indices)}
    if len(indices) > 2 and len(steps) == 1 and (step := steps.pop()) > 1:
        return f"{indices[0]},{indices[0] + step}..{indices[-1]}"
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    if len(ranges) > _MAX_RANGES:
        return f"[{len(indices)} of {indices[0]}-{indices[-1]}]"
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)
