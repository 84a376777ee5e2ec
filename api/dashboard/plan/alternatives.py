"""Plans that were not chosen beside the one that was: step time against memory, and what nothing beats."""

from dataclasses import dataclass

from planner.schema.plan import PlanBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """A plan in time and memory."""

    words: str
    kind: str
    """`chosen`, `alternative` (another mesh or grouping) or `why_not` (one decision changed)."""
    step_time_ns: int | None
    reserved_bytes: int | None
    fits: bool
    is_on_front: bool
    """No other one that is shown is as fast with as little memory."""


def trades(body: PlanBody) -> tuple[Trade, ...]:
    """The chosen plan first; empty where it stands alone."""
    others = [("alternative", one) for one in body.reasons.alternatives]
    others += [("why_not", one) for one in body.reasons.why_not]
    if body.predictions is None or not others:
        return ()
    chosen = (body.predictions.step_time_ns, body.predictions.peak.reserved_bytes)
    points = [chosen] + [
        (one.step_time_ns, one.reserved_bytes)
        for _, one in others
        if one.step_time_ns is not None and one.reserved_bytes is not None
    ]
    return (
        Trade(
            words="this plan",
            kind="chosen",
            step_time_ns=chosen[0],
            reserved_bytes=chosen[1],
            fits=True,
            is_on_front=_is_on_front(chosen, points),
        ),
        *(
            Trade(
                words=one.change,
                kind=kind,
                step_time_ns=one.step_time_ns,
                reserved_bytes=one.reserved_bytes,
                fits=one.fits,
                is_on_front=one.step_time_ns is not None
                and one.reserved_bytes is not None
                and _is_on_front((one.step_time_ns, one.reserved_bytes), points),
            )
            for kind, one in others
        ),
    )


def _is_on_front(point: tuple[int, int], points: list[tuple[int, int]]) -> bool:
    return not any(other != point and other[0] <= point[0] and other[1] <= point[1] for other in points)
