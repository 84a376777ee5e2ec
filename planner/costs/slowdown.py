"""How much slower compute and communication run beside each other, from the profile."""

from dataclasses import dataclass
from typing import Self

from planner.costs.rates import exact_fraction
from planner.schema import InconsistentRequest, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Work runs at `numerator / denominator` of its speed."""

    numerator: int = 1
    denominator: int = 1

    @classmethod
    def of(cls, share: float, *, path: str) -> Self:
        """Of a share of the speed that is lost; `path` names the field.

        Raises:
            InconsistentRequest: all of the speed is lost, so the work would never end.
        """
        speed = 1 - exact_fraction(share)
        if speed <= 0:
            raise InconsistentRequest(f"{path} is {share}: the work would never end; give a share below 1")
        return cls(numerator=speed.numerator, denominator=speed.denominator)

    def stretched_ns(self, duration_ns: int) -> int:
        """Duration at the lower speed, rounded up."""
        return -(-duration_ns * self.denominator // self.numerator)


NO_SLOWDOWN = Slowdown()


def compute_slowdown(profile: Profile | None) -> Slowdown:
    """Slowdown of calls while collectives run; errors as in `Slowdown.of`."""
    if profile is None:
        return NO_SLOWDOWN
    return Slowdown.of(
        profile.compute_slowdown_under_communication, path="profile.compute_slowdown_under_communication"
    )


def communication_slowdown(profile: Profile | None) -> Slowdown:
    """Slowdown of collectives while calls run; errors as in `Slowdown.of`."""
    if profile is None:
        return NO_SLOWDOWN
    return Slowdown.of(
        profile.communication_slowdown_under_compute, path="profile.communication_slowdown_under_compute"
    )
