"""A table of API keys."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.table import Table

from profiles_db.tables import KeyRow, now_us


def keys_page(rows: Sequence[KeyRow]) -> Table:
    """One line for each key."""
    table = Table(box=None, pad_edge=False, header_style="quiet")
    for column in ("key", "tenant", "scope", "name", "last used", "state"):
        table.add_column(column, overflow="fold", no_wrap=column != "name")
    for row in rows:
        table.add_row(
            row.key_id,
            row.tenant,
            row.scopes,
            row.name,
            "never" if row.last_used_at_us is None else _day(row.last_used_at_us),
            _state(row),
        )
    return table


def _state(row: KeyRow) -> str:
    if row.revoked_at_us is not None:
        return f"revoked {_day(row.revoked_at_us)}"
    if row.expires_at_us is None:
        return "active"
    return f"{'expired' if row.expires_at_us <= now_us() else 'until'} {_day(row.expires_at_us)}"


def _day(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d")
