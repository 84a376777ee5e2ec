"""In which order the units of a step really run, which no plan can know of a model that changed its mind."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from planner.schema import Decisions
from runtime_client.apply.modules import find_module


@dataclass(slots=True, kw_only=True)
class Order:
    """Forwards of units, by their first module, as they began; recomputations in backward left out."""

    begun: list[str] = field(default_factory=list)

    @property
    def num_forwards(self) -> int:
        """Runs of the whole model."""
        return self.begun.count("")

    def prefetches_behind(self, decisions: Decisions) -> Iterator[str]:
        """Prefetch edges to units that are over by then: they stay gathered for nothing."""
        places: dict[str, list[int]] = {}
        for place, name in enumerate(self.begun):
            if name == "" and places:  # the next micro-batch
                break
            places.setdefault(name, []).append(place)
        for unit in decisions.units:
            name = unit.modules[0]
            for target in unit.forward_prefetch:
                if name in places and target in places and max(places[target]) <= max(places[name]):
                    yield f"{name!r} prefetches {target!r} in forward, which does not run later"
            for target in unit.backward_prefetch:
                if name and name in places and target in places and min(places[target]) >= min(places[name]):
                    yield f"{name!r} prefetches {target!r} in backward, which does not run earlier in forward"


@contextmanager
def watched_order(model: nn.Module, decisions: Decisions) -> Iterator[Order]:
    """Watch which units begin, while the context is open."""
    order = Order()

    def begin(name: str, _module: nn.Module, _args: tuple[Any, ...]) -> None:
        if torch._C._current_graph_task_id() == -1:
            order.begun.append(name)

    with ExitStack() as hooks:
        for unit in decisions.units:
            module = find_module(model, unit.modules[0], where="decisions.units")
            hooks.callback(module.register_forward_pre_hook(partial(begin, unit.modules[0])).remove)
        yield order
