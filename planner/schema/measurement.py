"""Measurement: what a training job saw over a range of steps, to hold against what its plan predicts."""

from datetime import UTC, datetime
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from planner.schema.base import Count, Document, Positive, Sha256

MAX_BYTES = 2**44
"""16 TiB: more than any device has; a larger number is one of another unit."""
DeviceBytes = Annotated[int, Field(strict=True, ge=1, le=MAX_BYTES)]
_YEARS = range(2000, 3000)


def _moment(text: str) -> str:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is no ISO 8601 time; write one such as 2026-03-02T10:00:00+00:00") from None
    if at.tzinfo is None:
        raise ValueError("has no offset from UTC; write one such as 2026-03-02T10:00:00+00:00")
    if at.year not in _YEARS:
        raise ValueError(f"is in the year {at.year}; is the clock of the job right?")
    return text


class Measurement(Document):
    """Steps of one job under one plan. The first steps of a job have to be left out: allocators, kernels and
    communicators warm up in them, which no plan predicts.
    """

    kind: ClassVar[str] = "measurement"

    schema_version: Literal[1] = 1
    plan_id: Sha256
    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$")]
    """The job, by a name that it keeps: the same range of the same run under a plan is reported once."""
    first_step: Count
    last_step: Count
    """Included."""
    num_ranks: Positive
    step_time_ns: Positive
    """Median over the range, of the slowest rank: one step of the optimizer with all its micro-batches."""
    step_time_p99_ns: Positive | None = None
    """99th percentile over the range, of the slowest rank."""
    peak_bytes: DeviceBytes | None = None
    """Most that was allocated at a time on the fullest rank (`max_memory_allocated`)."""
    reserved_bytes: DeviceBytes | None = None
    """Most that the allocator of the fullest rank held (`max_memory_reserved`)."""
    device: Annotated[str, Field(max_length=200)] = ""
    """Name of the devices, as the driver gives it."""
    torch_version: Annotated[str, Field(max_length=100)] = ""
    measured_at: Annotated[str, Field(max_length=40), AfterValidator(_moment)]
    """End of the range, ISO 8601 with its offset from UTC."""

    @model_validator(mode="after")
    def _numbers_agree(self) -> Self:
        if self.last_step < self.first_step:
            raise ValueError(f"last_step {self.last_step} comes before first_step {self.first_step}")
        if self.step_time_p99_ns is not None and self.step_time_p99_ns < self.step_time_ns:
            raise ValueError("step_time_p99_ns is below the median, step_time_ns; are both in nanoseconds?")
        if self.peak_bytes and self.reserved_bytes and self.reserved_bytes < self.peak_bytes:
            raise ValueError("reserved_bytes is below peak_bytes; the allocator holds at least what is allocated")
        return self

    @property
    def measured_at_us(self) -> int:
        """Microseconds since 1970 (UTC) at the end of the range."""
        since = datetime.fromisoformat(self.measured_at) - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
