"""When the modules of units run: the calls at which their forward hooks fire."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.check.parts import PlannedCall, is_at_or_below
from planner.schema.model import LOSS_PATH, OUTPUT_PATH, CallRole, ModelDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One forward of a module, from its first to its last call."""

    module: str
    first_call: int
    last_call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One time that a unit is entered and left: the first run and the last run of its modules."""

    entered: Run
    left: Run

    @property
    def first_call(self) -> int:
        """Call before which the unit is entered."""
        return self.entered.first_call

    @property
    def last_call(self) -> int:
        """Call after which the unit is left."""
        return self.left.last_call


def module_depth(module: str) -> int:
    """Number of names in a dotted path."""
    return len(module.split(".")) if module else 0


def module_runs(model: ModelDescription, calls: Sequence[PlannedCall], module: str) -> list[Run]:
    """The forwards of a module in order.

    A module that is itself a call runs once for each such call. Any other holds calls: it runs once in each call of
    the model that was replaced by its parts and holds it, and once at all when there is none.
    """
    inside = [
        index
        for index, call in enumerate(calls)
        if call.path not in (OUTPUT_PATH, LOSS_PATH) and is_at_or_below(call.path, module)
    ]
    if all(calls[i].path == module and model.kinds[calls[i].kind].role is not CallRole.GLUE for i in inside):
        return [Run(module=module, first_call=index, last_call=index) for index in inside]
    runs: dict[int | None, list[int]] = {}
    for index in inside:
        holders = [whole.number for whole in calls[index].replaced if is_at_or_below(module, whole.path)]
        runs.setdefault(holders[-1] if holders else None, []).append(index)
    return [Run(module=module, first_call=run[0], last_call=run[-1]) for run in runs.values()]


def unit_passes(runs: Iterable[Run], modules: Sequence[str]) -> tuple[tuple[Pass, ...], bool]:
    """Passes of a unit, and whether the last one is complete.

    FSDP2 enters a group of modules with the first of them and leaves it when each has run
    (`_register_group_forward_hooks`).
    """
    passes: list[Pass] = []
    remaining: set[str] = set()
    entered: Run | None = None
    for run in sorted(runs, key=lambda run: run.first_call):
        if not remaining:
            remaining, entered = set(modules), run
        remaining.discard(run.module)
        if not remaining and entered is not None:
            passes.append(Pass(entered=entered, left=run))
    return tuple(passes), not remaining
