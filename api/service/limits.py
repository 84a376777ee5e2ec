"""What a request may ask of this server, beyond what the contract allows."""

from dataclasses import dataclass

from planner.schema import InvalidDocument, PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Set by the operator; a request above one of them is refused with its path."""

    max_calls: int
    """Calls in the model's forward, blocks among them."""
    max_search_s: float
    """Seconds on the clock that a request may let its search run."""
    max_deterministic_time: float

    def check(self, request: PlanRequest) -> None:
        """Refuse a request that asks for more.

        Raises:
            InvalidDocument: names the field and the limit.
        """
        found = {
            "model.calls": (len(request.model.calls), self.max_calls, "calls"),
            "search.wall_clock_s": (request.search.wall_clock_s, self.max_search_s, "seconds"),
            "search.deterministic_time": (
                request.search.deterministic_time,
                self.max_deterministic_time,
                "deterministic seconds",
            ),
        }
        problems = tuple(
            (path, f"{value:g} {unit}; this server allows {limit:g}")
            for path, (value, limit, unit) in found.items()
            if value > limit
        )
        if problems:
            path, message = problems[0]
            raise InvalidDocument(f"the body asks for too much: {path}: {message}", problems=problems)
