"""Settings: knobs of the runtime that hold for all units of a global choice, and which of them can matter."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from planner.costs import CostModel
from planner.schema import ClientFeature, PlanRequest
from planner.schema.base import MAX_INTEGER
from planner.space.fixed import allowed_values, allows
from planner.space.prefetch import BACKWARD_DEPTHS, DEEPEST, FORWARD_DEPTHS, ForwardPrefetch, GatherLimit

Value = TypeVar("Value")
REDUCE_BUFFERS = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Knobs of the runtime that hold for all units."""

    forward_prefetch: int = 0
    gather_limit: GatherLimit | None = None
    """Forward prefetch is as deep as gathers fit this."""
    backward_prefetch: int = 0
    reduce_buffers: int = 1
    separate_group: bool = False

    @property
    def reach(self) -> tuple[int, int]:
        """With a larger one no unit is gathered later in forward."""
        return self.forward_prefetch, self.gather_limit.size_bytes if self.gather_limit else MAX_INTEGER

    @property
    def forward_choice(self) -> int | str:
        """What a fixed choice calls its forward prefetch."""
        return f"fitted:{self.gather_limit.number}" if self.gather_limit else self.forward_prefetch

    @property
    def within(self) -> str:
        """The limit of gathers for people, after a depth."""
        limit = self.gather_limit
        return f" where gathers fit {limit.size_bytes / 2**30:.2f} GiB" if limit else ""

    def __str__(self) -> str:
        named = {
            "prefetch": f"{self.forward_prefetch} and {self.backward_prefetch} ahead{self.within}"
            if self.forward_prefetch or self.backward_prefetch
            else "",
            "buffers": f"{self.reduce_buffers} reduce buffers" if self.reduce_buffers > 1 else "",
            "group": "reduce-scatters in a group of their own" if self.separate_group else "",
        }
        return ", ".join(text for text in named.values() if text)


FSDP2_SETTING = Setting()
"""What FSDP2 does by itself."""


def settings(request: PlanRequest, prefetch: ForwardPrefetch, costs: CostModel) -> list[Setting]:
    """Every setting that can matter under a global choice, FSDP2's default first where it is allowed.

    Args:
        request: what to plan.
        prefetch: of the units of the global choice.
        costs: of its mesh.

    Raises:
        NoValueLeft: the fixed choices leave some knob nothing.
    """
    shards = prefetch.is_sharded
    deepest = prefetch.deepest if shards and allows(request, ClientFeature.PREFETCH) else 0
    buffers = shards and allows(request, ClientFeature.REDUCE_SCATTER_BUFFERS)
    separate = costs.concurrent_collectives and allows(request, ClientFeature.SEPARATE_REDUCE_SCATTER_GROUP)
    forward = {one.forward_choice: one for one in sorted(_forward(prefetch, deepest), key=lambda one: one.reach)}

    def left(knob: str, values: Iterable[Value]) -> tuple[Value, ...]:
        return cast(tuple[Value, ...], allowed_values(request, knob, tuple(values)))

    choices = left("forward_prefetch", forward)
    limits = [forward[choice].gather_limit for choice in choices]
    if any(limit and limit.is_least for limit in limits):
        choices = tuple(choice for choice in choices if choice != 1)  # takes as much, and is no faster
    return [
        replace(forward[choice], backward_prefetch=back, reduce_buffers=num, separate_group=group)
        for back in left("backward_prefetch", (d for d in BACKWARD_DEPTHS if d <= deepest))
        for choice in choices
        for num in left("reduce_scatter_max_input_buffers", REDUCE_BUFFERS if buffers else (1,))
        for group in left("separate_reduce_scatter_group", (False, True) if separate and shards else (False,))
    ]


def _forward(prefetch: ForwardPrefetch, deepest: int) -> Iterator[Setting]:
    for depth in FORWARD_DEPTHS:
        if depth <= deepest:
            yield Setting(forward_prefetch=depth)
    for limit in prefetch.limits() if deepest >= DEEPEST else ():
        yield Setting(forward_prefetch=DEEPEST, gather_limit=limit)
