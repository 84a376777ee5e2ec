"""Which events of a program happen."""

from collections.abc import Callable

from planner.program.choices import Condition

Holds = Callable[[Condition], bool]
"""Whether a condition is true."""


def fixed(condition: Condition) -> bool:
    """Suits programs whose knobs are all fixed: they have no conditions but the empty one."""
    return not condition
