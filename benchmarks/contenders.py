"""Configurations that people write by hand or other planners choose, and what each costs in our cost model."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from operator import itemgetter

from api.cli.by_hand import ByHand, block_paths
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    CallRole,
    ClusterDescription,
    Decisions,
    Limits,
    Liveness,
    ModelDescription,
    PlanBody,
    PlanRequest,
    StepBreakdown,
)
from planner.simulate.predict import predict

SHARES = {"none": 0, "every fourth": 4, "every second": 2, "all": 1}
"""Every how many blocks one is checkpointed in full; torchtitan counts them alike (`selective_ac_option`)."""
SELECTIVE = "selective"
"""All operations kept that the description offers: matrix products and attention. torchtitan keeps the same, but
only every second matrix product, which no description offers."""
ACTIVATIONS = (*SHARES, SELECTIVE)
GATHERING = ((False, 0), (False, 1), (False, 2), (True, 0), (True, 2))
"""Whether embedding, and norm with head, are units of their own; blocks gathered ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a configuration costs, in nanoseconds for a step and bytes of one rank."""

    name: str
    step_time_ns: int
    peak_bytes: int
    budget_bytes: int
    """What the cluster leaves to training tensors under this configuration."""
    fits_host: bool
    breakdown: StepBreakdown

    def fits(self, limit_bytes: int | None = None) -> bool:
        """Whether it keeps a limit, or without one what the cluster leaves."""
        return self.fits_host and self.peak_bytes <= (self.budget_bytes if limit_bytes is None else limit_bytes)


def outcome(request: PlanRequest, name: str, decisions: Decisions) -> Outcome:
    """Predict a configuration."""
    found = predict(request, decisions)
    return Outcome(
        name=name,
        step_time_ns=found.step_time_ns,
        peak_bytes=found.peak.reserved_bytes,
        budget_bytes=found.budget.budget_bytes,
        fits_host=not found.host_budget_bytes or found.host_reserved_bytes <= found.host_budget_bytes,
        breakdown=found.breakdown,
    )


def by_hand(
    request: PlanRequest,
    *,
    shard: int | None = None,
    reshard: bool = True,
    activation: str = "none",
    own_ends: bool = False,
    prefetch: int = 0,
) -> Decisions:
    """One setting for all blocks, each a unit; explicit prefetch starts at the root in forward.

    Args:
        request: model, cluster and workload.
        shard: shard degree; None takes all ranks.
        reshard: `reshard_after_forward` of all units but the root.
        activation: one of `ACTIVATIONS`.
        own_ends: embedding, and norm with head, are units of their own rather than part of the root.
        prefetch: blocks gathered ahead in forward and in backward; 0 is implicit.
    """
    blocks = block_paths(request)
    decisions = ByHand(
        shard=shard,
        reshard=str(reshard).lower(),
        prefetch=prefetch,
        units=_ends(request.model) if own_ends else (),
    ).decisions(request)
    *others, root = decisions.units
    root = root.model_copy(update={"forward_prefetch": blocks[:prefetch]})
    activations = selective(request) if activation == SELECTIVE else full(blocks, SHARES[activation])
    return decisions.model_copy(update={"units": (*others, root), "activations": activations})


def full(blocks: tuple[str, ...], every: int) -> tuple[ActivationPlan, ...]:
    """Full checkpointing of every so many blocks, none for 0."""
    chosen = blocks[every - 1 :: every] if every else ()
    return tuple(ActivationPlan(module=path, policy=ActivationPolicy.FULL) for path in chosen)


def selective(request: PlanRequest) -> tuple[ActivationPlan, ...]:
    """Selective checkpointing of every block with the most operations kept."""
    model = request.model
    kinds = {call.path: model.kinds[call.kind] for call in model.calls}
    return tuple(
        ActivationPlan(
            module=path,
            policy=ActivationPolicy.SELECTIVE,
            saved_ops=max((option.saved_ops for option in kinds[path].selective), key=len),
        )
        for path in block_paths(request)
    )


def within(request: PlanRequest, share: float, least: Decisions, most: Decisions) -> PlanRequest:
    """The request with a budget that is so far from the peak of one configuration to that of another."""
    low, high = (outcome(request, "", decisions).peak_bytes for decisions in (least, most))
    return request.model_copy(update={"limits": Limits(memory_bytes=low + int(share * (high - low)))})


def hand_written(request: PlanRequest) -> dict[str, Decisions]:
    """What a script has before anybody sweeps: FSDP2's defaults with the usual ways to checkpoint."""
    names = {
        "none": "FSDP2 defaults",
        "all": "full checkpointing",
        SELECTIVE: "selective checkpointing",
        "every second": "every second block",
    }
    return {name: by_hand(request, activation=choice) for choice, name in names.items()}


def grid(request: PlanRequest) -> dict[str, Decisions]:
    """A sweep of 100 points: mesh, resharding, checkpointing, units and prefetch, each the same for all blocks.

    The meshes are the whole world, and one node (half of it on a single node) replicated. Fewer points differ where
    tied parameters leave embedding and head in the root.
    """
    names: dict[Decisions, str] = {}
    for shard, reshard, activation, (own, prefetch) in product(
        _shard_degrees(request.cluster), (True, False), ACTIVATIONS, GATHERING
    ):
        decisions = by_hand(
            request, shard=shard, reshard=reshard, activation=activation, own_ends=own, prefetch=prefetch
        )
        words = f"{decisions.mesh.replicate} x {shard}, {'reshard' if reshard else 'keep'}, checkpoint {activation}"
        ends = ", ends on their own" if own else ""
        names.setdefault(decisions, f"{words}, prefetch {prefetch}{ends}")
    return {name: decisions for decisions, name in names.items()}


def block_by_block(
    request: PlanRequest,
    *,
    kept: Collection[str] = (),
    checkpointed: tuple[str, ...] = (),
    prefetch: int = 0,
) -> Decisions:
    """Blocks that stay gathered after forward, and blocks that are checkpointed in full."""
    decisions = by_hand(request, prefetch=prefetch)
    keep = {"reshard_after_forward": False}
    units = tuple(unit.model_copy(update=keep) if unit.modules[0] in kept else unit for unit in decisions.units)
    return decisions.model_copy(update={"units": units, "activations": full(checkpointed, 1)})


def protrain(request: PlanRequest) -> tuple[Outcome | None, int]:
    """ProTrain's search (arXiv 2406.08334): the best of its counts, and how many predictions it took.

    The counts are prefetched blocks (none or two), checkpointed blocks (the first ones) and blocks whose buffers
    stay gathered for backward (the last ones); state stays on the device, as this planner searches no offload. More
    buffers never take less memory, so the first count that does not fit ends a run of them.
    """
    blocks = block_paths(request)
    best, tried = None, 0
    for prefetch, checkpointed in product((0, 2), range(len(blocks) + 1)):
        for kept in range(len(blocks) + 1):
            decisions = block_by_block(
                request,
                kept=blocks[len(blocks) - kept :],
                checkpointed=blocks[:checkpointed],
                prefetch=prefetch,
            )
            one = outcome(request, f"{kept} kept, {checkpointed} checkpointed, prefetch {prefetch}", decisions)
            tried += 1
            if not one.fits():
                break
            best = one if best is None or one.step_time_ns < best.step_time_ns else best
    return best, tried


def deepcompile(request: PlanRequest, checkpointed: bool) -> tuple[Outcome | None, int]:
    """DeepCompile's selective unsharding (arXiv 2504.09983): what stays gathered, and how many predictions it took.

    Units stay gathered from forward to backward while that fits, those first whose gather takes the longest for its
    bytes: with a latency that is the smallest one, and among equals the first to run.
    """
    blocks = block_paths(request)
    policy = blocks if checkpointed else ()
    sizes = {unit.modules[0]: unit.num_parameters for unit in by_hand(request).units}
    best: Outcome | None = None
    kept: list[str] = []
    for path in (None, *sorted(blocks, key=lambda path: sizes[path])):
        trial = kept if path is None else [*kept, path]
        decisions = block_by_block(request, kept=trial, checkpointed=policy)
        one = outcome(request, f"{len(trial)} kept", decisions)
        if one.fits():
            best, kept = one, trial
        elif path is None:
            break
    return best, 1 if best is None else 1 + len(blocks)


def nearest_activations(
    request: PlanRequest, kept_bytes: Mapping[str, float], *, lean: bool
) -> tuple[ActivationPlan, ...]:
    """For each block the set of kept operations that is nearest to so many bytes of what it makes.

    It keeps no more than that (`lean`), or no less. Blocks not listed keep everything.
    """
    workload, model = request.workload, request.model

    def made_bytes(liveness: Liveness) -> int:
        made = (tensor.size_bytes for tensor in liveness.saved if not tensor.from_input)
        return sum(size.at(workload.micro_batch, workload.sequence) for size in made)

    def nearest(path: str, wanted: float) -> tuple[str, ...] | None:
        kind = next(model.kinds[call.kind] for call in model.calls if call.path == path)
        sets: list[tuple[int, tuple[str, ...] | None]] = [
            (made_bytes(option.liveness), option.saved_ops) for option in kind.selective
        ]
        sets += [(0, ()), (made_bytes(kind.none), None)]
        if lean:
            return max((entry for entry in sets if entry[0] <= wanted), key=itemgetter(0))[1]
        return min((entry for entry in sets if entry[0] >= wanted), key=itemgetter(0), default=sets[-1])[1]

    chosen = {path: nearest(path, wanted) for path, wanted in kept_bytes.items()}
    return tuple(
        ActivationPlan(
            module=path,
            policy=ActivationPolicy.SELECTIVE if saved else ActivationPolicy.FULL,
            saved_ops=saved,
        )
        for path, saved in chosen.items()
        if saved is not None
    )


def fastest(outcomes: list[Outcome], limit_bytes: int | None = None) -> Outcome | None:
    """The fastest that fits."""
    fitting = [one for one in outcomes if one.fits(limit_bytes)]
    return min(fitting, key=lambda one: one.step_time_ns, default=None)


def beaten_by(body: PlanBody, outcomes: list[Outcome], limit_bytes: int | None = None) -> str | None:
    """The contender that shows a plan to be worse than its certificate says, in words; None where there is none.

    Whatever fits must take at least the plan's proven bound.
    """
    best = fastest(outcomes, limit_bytes)
    if best is None:
        return None
    if body.certificate is None:
        return f"no plan, but {best.name} fits"
    if best.step_time_ns >= body.certificate.lower_bound:
        return None
    return (
        f"{best.name} takes {best.step_time_ns} ns, less than the bound of {body.certificate.lower_bound} ns that "
        f"the plan of {body.certificate.value} ns has"
    )


def gained(plan: StepBreakdown, other: StepBreakdown) -> str:
    """Where a plan's time differs most from another's, in ms, the largest three parts."""
    parts = {
        name.removesuffix("_ns").replace("_", " "): getattr(plan, name) - getattr(other, name)
        for name in StepBreakdown.model_fields
        if name != "total_ns"
    }
    largest = sorted(parts.items(), key=lambda part: -abs(part[1]))[:3]
    return ", ".join(f"{name} {change / 1e6:+.1f} ms" for name, change in largest if change) or "the same"


def _shard_degrees(cluster: ClusterDescription) -> tuple[int, int]:
    (group,) = cluster.node_groups
    world = cluster.num_devices
    return world, (group.devices_per_node if group.num_nodes > 1 else world // 2)


def _ends(model: ModelDescription) -> tuple[str, ...]:
    """Embedding, and norm with head, as `ByHand.units` takes them; none where parameters are tied."""
    if any(parameter.tied_to is not None for _, parameter in model.iter_parameters()):
        return ()
    owners = {module.path for module in model.modules if model.parameter_sets[module.parameters]}

    def paths(role: CallRole) -> list[str]:
        return [call.path for call in model.calls if model.kinds[call.kind].role is role and call.path in owners]

    embedding, norm, head = paths(CallRole.EMBEDDING)[0], paths(CallRole.NORM)[-1], paths(CallRole.HEAD)[0]
    return (embedding, f"{norm},{head}")
