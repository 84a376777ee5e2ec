"""What differences look like from outside."""

from collections.abc import Iterable

from pydantic import BaseModel

from planner.explain import Difference


class Change(BaseModel):
    """One thing that differs."""

    path: str
    before: str
    after: str
    words: str

    @classmethod
    def all_of(cls, found: Iterable[Difference]) -> "list[Change]":
        """Show differences."""
        return [cls(path=item.path, before=item.before, after=item.after, words=item.words) for item in found]
