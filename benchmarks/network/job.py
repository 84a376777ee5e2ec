"""What a launch of ranks measures."""

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """With or without accumulation, within a budget that binds or not."""

    num_micro_batches: int = 1
    is_tight: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One model behind one rate."""

    model: str
    megabits: int | None
    description: str
    """Of the model, as JSON."""
    variants: tuple[Variant, ...]
    delay_us: int = 0
    rounds: int = 8
    profile_rounds: int = 6
    has_grid: bool = True
    """Also measure what a person would tune by hand."""

    def to_json(self) -> str:
        """For the ranks."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From the driver."""
        found = json.loads(text)
        return cls(**{**found, "variants": tuple(Variant(**one) for one in found["variants"])})
