"""A plan as Python: the `fully_shard` calls that carry it out, to read or to paste into a trainer."""

from planner.script.script import calls, script

__all__ = ["calls", "script"]
