"""Several plans of one job: the trade of step time against memory, and how far its sizes can be taken."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isqrt
from time import monotonic

from planner.found import OnProgress, Progress
from planner.infeasible import most_ranks
from planner.plan import make_plan
from planner.refuse import refuse_unsupported
from planner.resize import has_plan, in_micro_batches, on_nodes
from planner.schema import (
    InconsistentRequest,
    Limits,
    MemoryBudget,
    Objective,
    Plan,
    PlanRequest,
    Predictions,
    ShardwrightError,
)

MIN_POINTS = 2
"""The fastest plan and the leanest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with the request that it answers."""

    request: PlanRequest
    plan: Plan

    @property
    def predictions(self) -> Predictions | None:
        """Of a feasible plan."""
        return self.plan.body.predictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Extreme:
    """The plan of the last size with which a job can be planned."""

    planned: Planned
    beyond: int | None = None
    """The next size; None where there is none."""
    why_not: str = ""
    """Why that one cannot be planned."""


def front(request: PlanRequest, num_points: int, *, on_progress: OnProgress | None = None) -> tuple[Planned, ...]:
    """Plans of the Pareto front of step time and memory, the fastest first.

    The fastest plan; the leanest; and the fastest within each of `num_points - 2` budgets at equal distances
    between the two. Each keeps the request's limits and has its own proof. Plans that another one equals or beats
    in both are left out. An interrupt ends the sweep with the plans that there are.

    Args:
        request: the job; its objective does not matter.
        num_points: most plans.
        on_progress: told how far each search is.

    Returns:
        Plans with their requests; a single infeasible one where nothing fits.

    Raises:
        InconsistentRequest: fewer than two points are asked for.
        ShardwrightError: as `planner.plan.make_plan`.
        KeyboardInterrupt: a person stopped it before there was a plan.
    """
    if num_points < MIN_POINTS:
        raise InconsistentRequest(f"a front has at least {MIN_POINTS} points, not {num_points}")
    found: list[Planned] = []
    try:
        for planned in _sweep(request, num_points, _Told(on_progress)):
            found.append(planned)
            if _is_cut_short(planned.plan):
                break
    except KeyboardInterrupt:
        if not found:
            raise
    return _undominated(found)


def _sweep(request: PlanRequest, num_points: int, told: "_Told") -> Iterator[Planned]:
    fastest = _plan(request.model_copy(update={"objective": Objective.STEP_TIME}), told.about("fastest"))
    yield fastest
    if fastest.predictions is None:
        return
    leanest = _plan(request.model_copy(update={"objective": Objective.PEAK_MEMORY}), told.about("leanest"))
    yield leanest
    if leanest.predictions is None:
        return
    least, most = (one.predictions.peak.reserved_bytes for one in (leanest, fastest) if one.predictions)
    for point in range(num_points - 2, 0, -1):
        budget = least + (most - least) * point // (num_points - 1)
        if not least < budget < most:
            continue
        limits: Limits = request.limits.model_copy(update={"memory_bytes": budget})
        between = fastest.request.model_copy(update={"limits": limits})
        planned = _plan(between, told.about(f"{budget / 2**30:.2f} GiB"))
        if request.limits.memory_bytes is not None or _fits_device(planned.predictions):
            yield planned


def _fits_device(predictions: Predictions | None) -> bool:
    """Whether a plan fits beside all reserves, which a stated budget does not count."""
    if predictions is None:
        return False
    budget: MemoryBudget = predictions.budget
    reserves = budget.context_bytes + budget.communicators_bytes + budget.fragmentation_bytes + budget.other_bytes
    return predictions.peak.reserved_bytes + reserves <= budget.device_bytes


def _undominated(found: list[Planned]) -> tuple[Planned, ...]:
    """By step time; each needs less memory than all before it."""
    costs = {
        index: (one.predictions.step_time_ns, one.predictions.peak.reserved_bytes)
        for index, one in enumerate(found)
        if one.predictions is not None
    }
    kept: list[int] = []
    for index in sorted(costs, key=lambda index: costs[index]):
        if not kept or costs[index][1] < costs[kept[-1]][1]:
            kept.append(index)
    return tuple(found[index] for index in kept) or tuple(found[:1])


def largest_micro_batch(request: PlanRequest, *, on_progress: OnProgress | None = None) -> Extreme:
    """The plan with the largest micro-batch that fits, of those that divide the sequences of a rank.

    Returns:
        The plan, with the next larger size and why that does not do; an infeasible plan where no size does.

    Raises:
        ShardwrightError: as `planner.plan.make_plan`.
        KeyboardInterrupt: a person stopped it before there was a plan.
    """
    told = _Told(on_progress)
    sequences, rest = divmod(request.workload.global_batch, request.cluster.num_devices)
    sizes = [1] if rest else _divisors(sequences)
    requests = {size: in_micro_batches(request, size) for size in sizes}
    beyond: int | None = None
    for size in reversed(sizes):
        if size == sizes[0] or _is_possible(requests[size], told.about(f"micro-batch {size}")):
            break
        beyond = size
    return _extreme(requests[size], None if beyond is None else (beyond, requests[beyond]), told)


def fewest_ranks(request: PlanRequest, *, on_progress: OnProgress | None = None) -> Extreme:
    """The plan on the fewest devices on which some plan fits: whole nodes, or a divisor of one node's devices.

    Fits are taken to be monotone in the number of devices, which halves the sizes that are tried. The global batch
    is kept where it can be split on so many devices, and else rounded up; fixed meshes are open again.

    Returns:
        The plan, with the next smaller number of devices and why that does not do; an infeasible plan of the
        devices that there are where no number does.

    Raises:
        InconsistentRequest: the nodes are not all alike.
        ShardwrightError: as `planner.plan.make_plan`.
        KeyboardInterrupt: a person stopped it before there was a plan.
    """
    told = _Told(on_progress)
    sizes = _Sizes(request)
    low, high = -1, 0
    while not sizes.is_possible(high, told):
        if high == len(sizes) - 1:
            return _extreme(on_nodes(request, request.cluster.node_groups), None, told)
        low, high = high, min(2 * high + 1, len(sizes) - 1)
    while high - low > 1:
        middle = (low + high) // 2
        if sizes.is_possible(middle, told):
            high = middle
        else:
            low = middle
    return _extreme(sizes[high], None if low < 0 else (sizes.ranks(low), sizes[low]), told)


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


class _Sizes:
    """The same job on ever more devices."""

    def __init__(self, request: PlanRequest) -> None:
        if len(request.cluster.node_groups) > 1:
            raise InconsistentRequest(
                "cluster.node_groups: the fewest ranks are sought among equal nodes; leave one group"
            )
        (self._group,) = request.cluster.node_groups
        self._request = request
        devices = self._group.devices_per_node
        self._within = _divisors(devices)[:-1]
        self._most_nodes = most_ranks(request) // devices

    def __len__(self) -> int:
        return len(self._within) + self._most_nodes

    def _shape(self, index: int) -> tuple[int, int]:
        """Nodes and devices of each."""
        if index < len(self._within):
            return 1, self._within[index]
        return index - len(self._within) + 1, self._group.devices_per_node

    def is_possible(self, index: int, told: "_Told") -> bool:
        """Whether there is a plan."""
        return _is_possible(self[index], told.about(f"{self.ranks(index)} ranks"))

    def ranks(self, index: int) -> int:
        """Devices of a size."""
        nodes, devices = self._shape(index)
        return nodes * devices

    def __getitem__(self, index: int) -> PlanRequest:
        nodes, devices = self._shape(index)
        group = self._group.model_copy(update={"num_nodes": nodes, "devices_per_node": devices})
        return on_nodes(self._request, (group,))


def _extreme(request: PlanRequest, beyond: tuple[int, PlanRequest] | None, told: "_Told") -> Extreme:
    planned = _plan(request, told.about("the plan"))
    if beyond is None or planned.predictions is None:
        return Extreme(planned=planned)
    size, refused = beyond
    why = "not asked for, because the search was interrupted"
    if not _is_cut_short(planned.plan):
        why = _refusal(refused, told.about(f"why not {size}"))
    return Extreme(planned=planned, beyond=size, why_not=why)


def _refusal(request: PlanRequest, on_progress: OnProgress) -> str:
    try:
        infeasibility = make_plan(request, on_progress=on_progress).body.infeasibility
    except ShardwrightError as error:
        return str(error)
    except KeyboardInterrupt:
        return "the search was interrupted"
    return infeasibility.reason if infeasibility else "no plan was found within the limits of the search"


def _is_possible(request: PlanRequest, on_progress: OnProgress) -> bool:
    """Whether a size has a plan; one that the model's description or the fixed choices rule out has none."""
    try:
        refuse_unsupported(request)
        return has_plan(request, on_progress=on_progress)
    except ShardwrightError:
        return False


def _plan(request: PlanRequest, on_progress: OnProgress) -> Planned:
    return Planned(request=request, plan=make_plan(request, on_progress=on_progress))


def _is_cut_short(plan: Plan) -> bool:
    """Whether a person stopped the search."""
    certificate = plan.body.certificate
    return certificate is not None and certificate.status == "provisional"


class _Told:
    """Progress of one sweep from that of its searches."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._started = monotonic()

    def about(self, what: str) -> OnProgress:
        """For a search within the sweep."""

        def tell(progress: Progress) -> None:
            if self._on_progress is not None:
                elapsed_s = monotonic() - self._started
                message = f"{what}: {progress.message}"
                self._on_progress(replace(progress, elapsed_s=elapsed_s, message=message))

        return tell
