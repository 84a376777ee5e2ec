"""Version specifiers, as far as plans use them; trainers need no package for that."""

import re

_CLAUSE = re.compile(r"\s*(~=|==|!=|>=|<=|>|<)\s*(\d+(?:\.\d+)*)(\.\*)?\s*")
_RELEASE = re.compile(r"\s*v?(\d+(?:\.\d+)*)")


def release_of(version: str) -> tuple[int, ...]:
    """Leading numbers of a version; suffixes such as `+cu128` or `a0+git1234` do not count.

    Raises:
        ValueError: the text does not start with a number.
    """
    match = _RELEASE.match(version)
    if match is None:
        raise ValueError(f"{version!r} is not a version")
    return tuple(map(int, match[1].split(".")))


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version meets every clause of a PEP 440 specifier such as `>=2.11,<2.14`.

    Only release numbers are compared, so a nightly build counts as the release it leads to.

    Raises:
        ValueError: version or specifier cannot be read.
    """
    release = release_of(version)
    return all(_meets(release, clause) for clause in specifier.split(",") if clause.strip())


def _meets(release: tuple[int, ...], clause: str) -> bool:
    match = _CLAUSE.fullmatch(clause)
    if match is None or (match[3] and match[1] not in ("==", "!=")):
        raise ValueError(f"{clause!r} is not a version specifier")
    operator, wanted = match[1], tuple(map(int, match[2].split(".")))
    if match[3]:
        return (_padded(release, len(wanted))[: len(wanted)] == wanted) == (operator == "==")
    length = max(len(release), len(wanted))
    have, want = _padded(release, length), _padded(wanted, length)
    match operator:
        case "==":
            return have == want
        case "!=":
            return have != want
        case ">=":
            return have >= want
        case "<=":
            return have <= want
        case ">":
            return have > want
        case "<":
            return have < want
        case _:
            prefix = wanted[:-1]
            return have >= want and have[: len(prefix)] == prefix


def _padded(release: tuple[int, ...], length: int) -> tuple[int, ...]:
    return release + (0,) * (length - len(release))
