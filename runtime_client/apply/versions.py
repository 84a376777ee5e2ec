"""Version specifiers of plans against installed versions."""

from planner.schema.versions import release_of, satisfies

__all__ = ["release_of", "satisfies"]
