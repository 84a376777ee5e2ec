"""Global choices that are bounded together, and families of such that differ in the units off the device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.program.known import KnownSizes
from planner.program.units import partition
from planner.schema import MeshPlan, PlanRequest, ShardwrightError
from planner.space.candidate import Candidate, Training, candidates
from planner.space.fixed import NoValueLeft, keeps_choices, refuse_unknown_knobs
from planner.space.groupings import allowed_partitions
from planner.space.knobs import forward_prefetch, knob_names
from planner.space.offload import Offload
from planner.space.opened import Goal, OpenCandidate, Opening
from planner.space.settings import Setting, settings
from planner.space.sharding import NoCostOnHost, Sharding
from solver.schedule.problem import Aim


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A global choice under all settings of one backward depth and one reduce-scatter group.

    Or a family of such that differ in the units in host memory: it has floors, and parts.
    """

    candidate: Candidate
    settings: tuple[Setting, ...]
    opening: Opening
    floor_ns: int | None
    """No plan of the region has a faster step; None where none can fit."""

    @property
    def aim(self) -> Aim:
        """What is minimised."""
        return self.opening.aim

    @property
    def floor(self) -> int | None:
        """Bound on what is minimised; None where nothing can be feasible."""
        deadline = self.opening.deadline_ns
        late = self.floor_ns is None or (deadline is not None and self.floor_ns > deadline)
        return None if late else self.floor_ns if self.aim is Aim.MAKESPAN else self.floor_bytes()

    @property
    def label(self) -> str:
        """For people."""
        return self.candidate.label

    def floor_bytes(self) -> int:
        """No plan of the region needs less device memory."""
        return self.opening.floor_bytes(self.candidate)

    @property
    def is_family(self) -> bool:
        """Several sets of units may be in host memory."""
        return not self.candidate.offload.is_one

    @property
    def is_narrow(self) -> bool:
        """Of a family: its sets are so nearly alike that a relaxation bounds them well."""
        return self.candidate.offload.is_narrow

    @property
    def key(self) -> object:
        """What tells it from all others of a search."""
        return id(self.opening), self.label, self.settings

    @property
    def num_choices(self) -> int:
        """How many global choices it stands for."""
        offload = self.candidate.offload
        return offload.num_sets if offload.most else 1

    def parts(self) -> Iterator["Region"]:
        """Of a family: smaller ones, with all of its sets between them."""
        for half in self.candidate.offload.halves():
            yield from self._with(half)

    def samples(self) -> Iterator["Region"]:
        """Regions of it to find a plan in: itself, or of a family single sets, those that free most first."""
        if not self.is_family:
            yield self
        for offload in self.candidate.offload.samples() if self.is_family else ():
            yield from self._with(offload)

    def least_off(self) -> Iterator["Region"]:
        """Of a family: single sets, from the fewest units that floors leave room for to all of a class."""
        family = self.candidate.offload
        low, high = 0, family.num_even
        while low < high:
            middle = (low + high) // 2
            if self._has_room(family.evenly(middle)):
                high = middle
            else:
                low = middle + 1
        for offload in map(family.evenly, range(low, family.num_even + 1)):
            if offload.most:
                yield from self._with(offload)

    def _has_room(self, offload: Offload) -> bool:
        return bool(offload.most) and all(region.floor is not None for region in self._with(offload))

    def _with(self, offload: Offload) -> Iterator["Region"]:
        candidate = self.candidate.with_offload(offload)
        opening = self.opening.part(candidate)
        floor = opening.floor_ns(candidate)
        for members in _groups(self.settings, candidate):
            yield replace(
                self,
                candidate=candidate.with_setting(members[0]),
                settings=members,
                opening=opening,
                floor_ns=floor,
            )

    def open(self, setting: Setting) -> OpenCandidate:
        """The problem under one setting."""
        return self.opening.open(self.candidate.with_setting(setting))

    def relaxed(self) -> OpenCandidate:
        """A problem that bounds all settings; exact where there is one."""
        return self.opening.relaxed(self.candidate, self.settings)


def regions(request: PlanRequest, goal: Goal | None = None, *, on_host: bool = False) -> Iterator[Region]:
    """All regions of a request, those that offload apart.

    Args:
        request: what to plan.
        goal: what to minimise within which bounds, the request's own where it is not given.
        on_host: those with something in host memory, or those without. Activations are offloaded for speed alone:
            where memory is minimised their floors are too weak to rule any of them out, unless that is fixed.

    Raises:
        InconsistentRequest: the fixed choices leave nothing, or name a knob that there is not.
    """
    known: dict[Training, KnownSizes] = {}
    shardings: dict[tuple[Training, MeshPlan, MeshPlan | None], Sharding] = {}
    openings: dict[tuple[object, ...], Opening] = {}
    refusals: list[ShardwrightError] = []
    found = 0
    whole = partition(request.model, ())
    goal = goal or Goal.of(request)
    for candidate in candidates(request, on_host=on_host, activations=goal.aim is Aim.MAKESPAN):
        if request.fixed and not keeps_choices(request.fixed, knob_names(candidate.partition)):
            continue
        place = (candidate.training, candidate.mesh, candidate.large_mesh)
        if place not in shardings:
            training = candidate.training.of(request)
            sizes = known.setdefault(candidate.training, KnownSizes(training.workload.precision))
            shardings[place] = Sharding(training, whole, candidate, sizes)
        key = (*place, id(candidate.partition), candidate.offload, candidate.activation_offload)
        try:
            if key not in openings:
                openings[key] = Opening(candidate, shardings[place], goal)
            members = list(_regions_of(request, candidate, openings[key]))
        except (NoValueLeft, NoCostOnHost) as refusal:
            refusals.append(refusal)
            continue
        found += len(members)
        yield from members
    if not found:
        groups = allowed_partitions(request)
        refuse_unknown_knobs(request.fixed, {name for group in groups for name in knob_names(group.partition)})
    if not found and refusals:
        raise refusals[0]


def _regions_of(request: PlanRequest, candidate: Candidate, opening: Opening) -> Iterator[Region]:
    floors: dict[bool, int | None] = {}
    prefetch = forward_prefetch(candidate, opening.inputs.sizes, opening.costs)
    for members in _groups(settings(request, prefetch, opening.costs), candidate):
        separate = members[0].separate_group
        if separate not in floors:
            floors[separate] = opening.floor_ns(candidate.with_setting(Setting(separate_group=separate)))
        yield Region(
            candidate=candidate.with_setting(members[0]),
            settings=members,
            opening=opening,
            floor_ns=floors[separate],
        )


def _groups(members: Sequence[Setting], candidate: Candidate) -> Iterator[tuple[Setting, ...]]:
    """Settings that one relaxation bounds; of a family that has floors only, those with one floor."""
    groups: dict[tuple[int, bool], list[Setting]] = {}
    is_relaxed = candidate.offload.is_one or candidate.offload.is_narrow
    for setting in members:
        depth = setting.backward_prefetch if is_relaxed else 0
        groups.setdefault((depth, setting.separate_group), []).append(setting)
    yield from map(tuple, groups.values())
