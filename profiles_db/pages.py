"""Keyset pages: a cursor is the place after the last row shown, so pages stay stable under writes."""

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Select, and_, or_, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from planner.schema.errors import ShardwrightError

Row = TypeVar("Row")
_REMEDY = "cursor is not one that a page gave out; start again without it"


class InvalidCursor(ShardwrightError):
    """A cursor that no page gave out."""

    code = "invalid_cursor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The last row of a page."""

    created_at_us: int
    key: str

    def encode(self) -> str:
        """Opaque text for URLs."""
        return base64.urlsafe_b64encode(f"{self.created_at_us}|{self.key}".encode()).decode().rstrip("=")

    @property
    def number(self) -> int:
        """The key of rows that are numbered.

        Raises:
            InvalidCursor: it is the cursor of other rows.
        """
        if not re.fullmatch(r"[0-9]{1,9}", self.key):
            raise InvalidCursor(_REMEDY)
        return int(self.key)

    @classmethod
    def of(cls, text: str | None) -> "Cursor | None":
        """As `decode`; None, the beginning, where no cursor is given."""
        return None if text is None else cls.decode(text)

    @classmethod
    def decode(cls, text: str) -> "Cursor":
        """Read `encode`'s text.

        Raises:
            InvalidCursor: the text was not made by `encode`.
        """
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            at, _, key = base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii").partition("|")
            cursor = cls(created_at_us=int(at), key=key)
        except (ValueError, binascii.Error):
            cursor = None
        if (
            cursor is None
            or not 0 <= cursor.created_at_us < 2**62
            or not cursor.key.isprintable()
            or not cursor.key
        ):
            raise InvalidCursor(_REMEDY)
        return cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Row]):
    """Some rows in their order, and the cursor of the next page if there is one."""

    items: Sequence[Row]
    next: str | None


def newest_first(
    query: Select[Row],
    created_at_us: InstrumentedAttribute[int],
    key: InstrumentedAttribute[str],
    *,
    cursor: Cursor | None,
    limit: int,
) -> Select[Row]:
    """One row more than `limit`, so that `page_of` knows whether another page follows."""
    if cursor is not None:
        query = query.where(tuple_(created_at_us, key) < tuple_(cursor.created_at_us, cursor.key))
    return query.order_by(created_at_us.desc(), key.desc()).limit(limit + 1)


def page_of(rows: Sequence[Any], key: str, *, limit: int) -> Page[Any]:
    """Cut the extra row off and name the next page."""
    return _cut(rows, limit, lambda last: Cursor(created_at_us=last.created_at_us, key=getattr(last, key)))


def highest_first(
    query: Select[Row], number: InstrumentedAttribute[int], *, cursor: Cursor | None, limit: int
) -> Select[Row]:
    """As `newest_first`, for rows that are numbered in their order.

    Raises:
        InvalidCursor: the cursor is that of other rows.
    """
    if cursor is not None:
        query = query.where(number < cursor.number)
    return query.order_by(number.desc()).limit(limit + 1)


def lowest_first(
    query: Select[Row], number: InstrumentedAttribute[int], *, cursor: Cursor | None, limit: int
) -> Select[Row]:
    """As `highest_first`, the other way round."""
    if cursor is not None:
        query = query.where(number > cursor.number)
    return query.order_by(number).limit(limit + 1)


def page_of_numbers(rows: Sequence[Any], number: str, *, limit: int) -> Page[Any]:
    """As `page_of`, for rows that are numbered in their order."""
    return _cut(rows, limit, lambda last: Cursor(created_at_us=0, key=str(getattr(last, number))))


def _cut(rows: Sequence[Any], limit: int, place_of: Callable[[Any], Cursor]) -> Page[Any]:
    items = rows[:limit]
    return Page(items=items, next=place_of(items[-1]).encode() if len(rows) > limit else None)


def sorted_page(
    session: Session,
    query: Select[Row],
    column: InstrumentedAttribute[Any],
    key: InstrumentedAttribute[str],
    *,
    is_descending: bool,
    cursor: str | None,
    limit: int,
) -> Page[Any]:
    """Rows in the order of any column, equal ones in that of their key; rows without a value come last.

    Raises:
        InvalidCursor: the cursor is not from an earlier page in the same order.
    """
    order = f"{column.key} {'desc' if is_descending else 'asc'}"
    if cursor is not None:
        query = query.where(_after(column, key, is_descending, _place(cursor, order)))
    by_value = column.desc() if is_descending else column.asc()
    by_key = key.desc() if is_descending else key.asc()
    rows = session.scalars(query.order_by(column.is_(None), by_value, by_key).limit(limit + 1)).all()
    items = rows[:limit]
    more = len(rows) > limit
    return Page(
        items=items,
        next=_encode([order, getattr(items[-1], column.key), getattr(items[-1], key.key)]) if more else None,
    )


def _after(
    column: InstrumentedAttribute[Any], key: InstrumentedAttribute[str], is_descending: bool, place: tuple[Any, str]
) -> ColumnElement[bool]:
    value, last = place
    beyond = key < last if is_descending else key > last
    if value is None:
        return and_(column.is_(None), beyond)
    further = column < value if is_descending else column > value
    return or_(further, and_(column == value, beyond), column.is_(None))


def _encode(place: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def _place(cursor: str, order: str) -> tuple[Any, str]:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        place = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        place = None
    match place:
        case [str(given), None | int() | float() as value, str(last)] if given == order:
            if value is None or -(2**62) < value < 2**62:
                return value, last
    raise InvalidCursor(_REMEDY)
