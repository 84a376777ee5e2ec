"""Version specifiers of PEP 440, without a package for them: trainers install none."""

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

_LABELS = r"""
    (?:[-_.]? (?P<pre>alpha|beta|preview|pre|a|b|c|rc) [-_.]? (?P<pre_number>[0-9]*))?
    (?P<post>-[0-9]+ | [-_.]? (?:post|rev|r) [-_.]? [0-9]*)?
    (?P<dev>[-_.]? dev [-_.]? [0-9]*)?
"""
_RELEASE = r"v? (?:(?P<epoch>[0-9]+)!)? (?P<release>[0-9]+(?:\.[0-9]+)*)"
_LOCAL = r"(?:\+ (?P<local>[a-z0-9]+ (?:[-_.][a-z0-9]+)*))?"
_FLAGS = re.VERBOSE | re.IGNORECASE | re.ASCII
_VERSION = re.compile(rf"\s* {_RELEASE} {_LABELS} {_LOCAL} \s*", _FLAGS)
_CLAUSE = re.compile(r"\s* (?P<operator>===|~=|==|!=|<=|>=|<|>) \s* (?P<version>\S+) \s*", _FLAGS)
_PREFIX = re.compile(rf"{_RELEASE} \.\*", _FLAGS)
_ARBITRARY = re.compile(r"[^\s;)]+")
_PRE_RELEASES = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """A version in parts; absent numbers of a label are 0, absent labels None."""

    epoch: int
    release: tuple[int, ...]
    pre: tuple[int, int] | None = None
    post: int | None = None
    dev: int | None = None
    local: str | None = None

    @property
    def base(self) -> tuple[int, tuple[int, ...]]:
        """Epoch and release; `2.13` and `2.13.0` are the same."""
        numbers = list(self.release)
        while len(numbers) > 1 and not numbers[-1]:
            numbers.pop()
        return self.epoch, tuple(numbers)

    @property
    def order(self) -> tuple[object, ...]:
        """What versions are ordered by: a.dev < a < rc < release < post, without local labels."""
        first, last = (-1, 0), (3, 0)
        early = first if self.pre is None and self.post is None and self.dev is not None else last
        post = -1 if self.post is None else self.post
        dev = (1, 0) if self.dev is None else (0, self.dev)
        return (*self.base, self.pre or early, post, dev)


def release_of(version: str) -> tuple[int, ...]:
    """Release numbers of a version; suffixes such as `+cu128` or `a0+git1234` do not count.

    Raises:
        ValueError: the text is not a version.
    """
    return _parsed(version).release


def satisfies(version: str, specifier: str) -> bool:
    """Whether an installed version meets every clause of a specifier such as `>=2.11,<2.14`.

    A nightly build or release candidate that is installed counts as the release it leads to.

    Raises:
        ValueError: version or specifier is not valid.
    """
    found = _parsed(version)
    have = _Version(epoch=found.epoch, release=found.release, post=found.post, local=found.local)
    met = [_meets(have, version, clause) for clause in _clauses(specifier)]  # all of them, so that each is read
    return all(met)


def _specifier(text: str) -> str:
    satisfies("0", text)
    return text


VersionSpecifier = Annotated[str, Field(max_length=200), AfterValidator(_specifier)]
"""A PEP 440 specifier; the empty one allows every version."""


def _clauses(specifier: str) -> list[str]:
    return [clause for clause in specifier.split(",") if clause.strip()]


def _parsed(text: str) -> _Version:
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a version")
    pre = match["pre"]
    return _Version(
        epoch=int(match["epoch"] or 0),
        release=tuple(map(int, match["release"].split("."))),
        pre=None if pre is None else (_PRE_RELEASES[pre.lower()], int(match["pre_number"] or 0)),
        post=_number(match["post"]),
        dev=_number(match["dev"]),
        local=None if match["local"] is None else re.sub(r"[-_.]", ".", match["local"].lower()),
    )


def _number(label: str | None) -> int | None:
    return None if label is None else int(re.sub(r"\D", "", label) or 0)


def _meets(have: _Version, text: str, clause: str) -> bool:
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        raise _refused(clause)
    operator, wanted = match["operator"], match["version"]
    if operator == "===":
        if _ARBITRARY.fullmatch(wanted) is None:
            raise _refused(clause)
        return text.strip().lower() == wanted.lower()
    if operator in ("==", "!=") and (prefix := _PREFIX.fullmatch(wanted)):
        numbers = tuple(map(int, prefix["release"].split(".")))
        return _starts_with(have, int(prefix["epoch"] or 0), numbers) == (operator == "==")
    if _VERSION.fullmatch(wanted) is None:
        raise _refused(clause)
    return _compares(have, operator, _parsed(wanted), clause)


def _compares(have: _Version, operator: str, want: _Version, clause: str) -> bool:
    if operator not in ("==", "!=") and want.local is not None:
        raise _refused(clause)
    match operator:
        case "==" | "!=":
            same = have.order == want.order and want.local in (None, have.local)
            return same == (operator == "==")
        case ">=":
            return have.order >= want.order
        case "<=":
            return have.order <= want.order
        case "<":
            return have.order < want.order
        case ">":
            only_posted = have.post is not None and want.post is None and have.base == want.base
            return have.order > want.order and not only_posted
        case _:
            if len(want.release) < 2:
                raise _refused(clause)
            return have.order >= want.order and _starts_with(have, want.epoch, want.release[:-1])


def _starts_with(have: _Version, epoch: int, numbers: tuple[int, ...]) -> bool:
    padded = have.release + (0,) * len(numbers)
    return have.epoch == epoch and padded[: len(numbers)] == numbers


def _refused(clause: str) -> ValueError:
    return ValueError(
        f"{clause.strip()!r} is not a version specifier (PEP 440); write it like '>=2.11' or '>=2.11,<2.14'"
    )
