"""Errors of measurements."""

from collections.abc import Sequence

from planner.schema import ShardwrightError

Problem = tuple[str, str]
"""Path in the profile, and what is wrong there with the remedy."""


class ImplausibleProfile(ShardwrightError):
    """Some measurement cannot be true: an outlier, or a number in another unit.

    `problems` lists `(path, message)`.
    """

    code = "implausible_profile"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        shown = "; ".join(f"{path} {message}" for path, message in self.problems[:5])
        more = f" (and {len(self.problems) - 5} more)" if len(self.problems) > 5 else ""
        super().__init__(f"{shown}{more}. Measure again, mend the number or leave it out.")


class NoMeasurements(ShardwrightError):
    """A file has nothing that a profile could hold."""

    code = "no_measurements"
