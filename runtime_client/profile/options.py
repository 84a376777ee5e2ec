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
        points: sizes to measure calls at; empty takes six near micro-batch and sequence (`default_points`).
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
    """Up to six sizes from which the time of others follows: what is asked for, half the micro-batch, half and a
    quarter of the sequence, and twice the micro-batch at both of these. None needs more memory than the first.
    """
    sizes = [(micro_batch, sequence), (micro_batch // 2, sequence)]
    sizes += [(times * micro_batch, sequence // part) for part in (2, 4) for times in (1, 2)]
    return tuple(
        TracePoint(micro_batch=batch, sequence=tokens)
        for batch, tokens in sizes
        if batch and tokens >= min(FEWEST_TOKENS, sequence)
    )
