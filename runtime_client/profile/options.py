"""What to measure, and for how long."""

from dataclasses import dataclass
from pathlib import Path

from planner.schema import TracePoint

FEWEST_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """Options of `profile`.

    Attributes:
        micro_batch: sequences per rank in one forward.
        sequence: tokens per sequence.
        points: sizes to measure calls at; empty takes four near micro-batch and sequence (`default_points`).
        seconds: about how long to measure; about half of it calls, a quarter collectives.
        largest_bytes: of the buffers of collectives; None takes the largest block of the model.
        every_mesh: measure the groups of all meshes of the job, not only world, node and across nodes.
        optimizer: whose rate to measure; None measures none.
        implementation: foreach, fused or for_loop.
        drive: a folder on the drive to measure; None measures none.
        name: of the profile.
        cluster: name of the cluster that the job runs on.
    """

    micro_batch: int
    sequence: int
    points: tuple[TracePoint, ...] = ()
    seconds: float = 60.0
    largest_bytes: int | None = None
    every_mesh: bool = False
    optimizer: str | None = "adamw"
    implementation: str = "foreach"
    drive: Path | None = None
    name: str = "profile"
    cluster: str = ""


def default_points(micro_batch: int, sequence: int) -> tuple[TracePoint, ...]:
    """Four sizes from which the time of others follows: what is asked for, half and a quarter of the sequence, and
    twice the micro-batch at half the sequence. None needs more memory than the first.
    """
    sizes = [(micro_batch, 1), (micro_batch, 2), (2 * micro_batch, 2), (micro_batch, 4)]
    return tuple(
        TracePoint(micro_batch=batch, sequence=max(1, sequence // part))
        for batch, part in sizes
        if part == 1 or sequence // part >= FEWEST_TOKENS
    )
