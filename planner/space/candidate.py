"""Global choices: what is enumerated, while the decisions of single units and blocks are searched inside each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from planner.program.units import Partition
from planner.schema import (
    CallRole,
    ClientFeature,
    DType,
    GradientSync,
    InconsistentRequest,
    MatrixOwner,
    MeshPlan,
    PlanRequest,
    StateTier,
    Workload,
)
from planner.schema.workload import OptimizerImplementation
from planner.space.aliases import NO_ALIASES, alias_choices, aliasable
from planner.space.fixed import allowed, allows
from planner.space.groupings import allowed_partitions
from planner.space.layouts import Cut, Layouts
from planner.space.meshes import allowed_meshes, large_units, mesh_beside
from planner.space.offload import ON_DEVICE, Moved, Offload, may_stay, offloads
from planner.space.owners import NO_OWNERS, MuonOwners
from planner.space.settings import FSDP2_SETTING, Setting

Value = TypeVar("Value")
ACTIVATION_OFFLOADS = (0, 4, 2, 1)
"""One block of how many offloads its activations; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is decided about the workload itself, of what the request allows."""

    micro_batch: int
    reduce_dtype: DType | None
    optimizer_implementation: OptimizerImplementation | None = None
    """None leaves the workload's own."""

    def of(self, request: PlanRequest) -> PlanRequest:
        """The request with its workload so."""
        precision = request.workload.precision.model_copy(update={"reduce_dtype": self.reduce_dtype})
        workload = request.workload.model_copy(update={"micro_batch": self.micro_batch, "precision": precision})
        if self.optimizer_implementation is not None:
            workload = workload.with_implementation(self.optimizer_implementation)
        return request.model_copy(update={"workload": workload})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One global choice, or several that differ in the units in host memory."""

    mesh: MeshPlan
    partition: Partition
    words: str
    """For people, without what is in host memory."""
    training: Training
    large_mesh: MeshPlan | None = None
    """Of the large units, where it is not that of the others."""
    large: frozenset[int] = frozenset()
    """Units that are large."""
    cut: Cut | None = None
    """Whether the units that a layout would help have one; None where there are none."""
    alias_gathers: bool = False
    """Units that can be gathered in place are."""
    owners: tuple[MatrixOwner, ...] = ()
    """Of Muon's matrices; none where torch's Muon updates them."""
    gradient_sync: GradientSync = GradientSync.EVERY_MICRO_BATCH
    keeps_gathered: bool = False
    """Units stay gathered between the micro-batches of a step."""
    offload: Offload = ON_DEVICE
    activation_offload: int = 0
    """Each block of so many in a row offloads its activations, the last block of all never; 0 for none."""
    setting: Setting = FSDP2_SETTING

    @property
    def meshes(self) -> tuple[MeshPlan, ...]:
        """Of each unit."""
        units = range(len(self.partition.units))
        return tuple(self.large_mesh if self.large_mesh and unit in self.large else self.mesh for unit in units)

    @property
    def aliased(self) -> tuple[bool, ...]:
        """Per unit, whether it is gathered in place; empty where none is."""
        return aliasable(self.partition, self.meshes) if self.alias_gathers else ()

    @property
    def on_host(self) -> tuple[bool, ...]:
        """Per unit, whether it is in host memory, or may be."""
        most = self.offload.most if self.offload.moved is Moved.UNITS else ()
        return tuple(unit in most for unit in range(len(self.partition.units)))

    @property
    def optimizer_tiers(self) -> tuple[StateTier, ...]:
        """Per unit where its optimizer state is, or may be, that alone is off the device; empty where none is."""
        if self.offload.moved is Moved.UNITS:
            return ()
        most, tier = self.offload.most, self.offload.moved.tier
        return tuple(tier if unit in most else StateTier.DEVICE for unit in range(len(self.partition.units)))

    @property
    def label(self) -> str:
        """For people."""
        units = sum(bool(unit.parameters) for unit in self.partition.units)
        texts = (self.words, self.offload.words(units), _OFFLOADED[self.activation_offload])
        return ", ".join(filter(None, texts))

    @property
    def offloaded_blocks(self) -> frozenset[str]:
        """Paths of the blocks whose activations go to the host."""
        every, model = self.activation_offload, self.partition.model
        blocks = dict.fromkeys(call.path for call in model.calls if model.kinds[call.kind].role is CallRole.BLOCK)
        return frozenset(list(blocks)[:-1:every] if every else ())

    def with_setting(self, setting: Setting) -> "Candidate":
        """The same with other knobs of the runtime."""
        return replace(self, setting=setting)

    def with_offload(self, offload: Offload) -> "Candidate":
        """The same with other units in host memory."""
        return replace(self, offload=offload)


_ON_DEVICE = (None, 0)


def num_micro_batches(request: PlanRequest, micro_batch: int | None = None) -> int:
    """Micro-batches per rank and step, of the workload's size or of another."""
    workload = request.workload
    return workload.global_batch // ((micro_batch or workload.micro_batch) * request.cluster.num_devices)


def possible_micro_batches(request: PlanRequest) -> tuple[int, ...]:
    """Sizes that may be chosen and divide the sequences of a rank, the workload's own first."""
    sequences, rest = divmod(request.workload.global_batch, request.cluster.num_devices)
    asked = dict.fromkeys((request.workload.micro_batch, *request.micro_batches))
    return tuple(size for size in asked if not rest and not sequences % size)


def candidates(request: PlanRequest, *, on_host: bool, activations: bool = True) -> Iterator[Candidate]:
    """Every mesh, grouping and accumulation, as the client's features and the fixed choices allow.

    Each stands for its `settings` too, and for a family of sets of units in host memory.

    Args:
        request: what to plan.
        on_host: those with something in host memory, or those without.
        activations: those with activations in host memory among them; they are left out where there are others
            that offload nothing or units.

    Raises:
        InconsistentRequest: a fixed choice leaves none.
    """
    meshes = list(allowed_meshes(request))
    groups = allowed_partitions(request)
    trainings = list(_trainings(request))
    accumulations = {training: list(_accumulations(request, training)) for training in trainings}
    if not meshes or not groups or not any(accumulations.values()):
        raise InconsistentRequest(
            "fixed: no mesh and grouping is left; the choices for mesh.shard, mesh.replicate, units.embedding, "
            "units.head, blocks_per_unit, split_blocks, micro_batch, reduce_dtype, optimizer_implementation, "
            "gradient_sync, reshard_after_backward, offload, optimizer_offload or activation_offload contradict "
            "each other, cluster, model, workload.conditional, optimizer (Muon's matrices) or the client's features"
        )
    layouts, found, refusal = Layouts(request), False, ""
    owners = MuonOwners(request)
    beside = {mesh: None if on_host else mesh_beside(request, mesh) for mesh in meshes}
    large = {id(group): large_units(group.partition) for group in groups} if any(beside.values()) else {}
    ways_out = reversed(list(_ways_out(request, activations=activations)))
    chosen = [pair for pair in ways_out if (pair != _ON_DEVICE) is on_host]
    for (moved, blocks), training, mesh, group in product(chosen, trainings, meshes, groups):
        if blocks and group.partition.blocks:
            continue  # halves would each wait for copies of their own
        family = _family(request, group.partition, moved)
        if family is None:
            continue
        apart = large.get(id(group), frozenset())
        choices = [
            other
            for other in dict.fromkeys((None, beside[mesh] if apart else None))
            if allowed(request, {"mesh.large_units.shard": (other or mesh).shard})
        ]
        owned = owners.of(mesh.shard)
        if owned is None:
            refusal = NO_OWNERS
            continue
        for large_mesh, (sync, keeps) in product(choices, accumulations[training]):
            if sync is GradientSync.ALL_REDUCE_ON_LAST and (large_mesh or mesh).replicate == mesh.replicate == 1:
                continue
            evenly = Candidate(
                mesh=mesh,
                large_mesh=large_mesh,
                large=apart,
                partition=group.partition,
                words="",
                training=training,
                gradient_sync=sync,
                keeps_gathered=keeps,
                offload=family,
                activation_offload=blocks,
                owners=owned,
            )
            for way in layouts.ways(group.partition, evenly.meshes):
                laid_out = replace(evenly, partition=way.partition, cut=way.cut)
                aliases = alias_choices(request, aliasable(way.partition, evenly.meshes))
                found = found or bool(aliases)
                refusal = refusal if aliases else NO_ALIASES
                for alias in aliases:
                    candidate = replace(laid_out, alias_gathers=alias)
                    yield replace(candidate, words=_words(candidate, group.label, trainings))
    if not found and (layouts.refusal or refusal):
        raise InconsistentRequest(layouts.refusal or refusal)


def _trainings(request: PlanRequest) -> Iterator[Training]:
    own = request.workload
    dtypes = tuple(dict.fromkeys((own.precision.reduce_dtype, *request.reduce_dtypes)))
    steps = tuple(dict.fromkeys((None, *request.optimizer_implementations)))
    for size, dtype, step in product(possible_micro_batches(request), dtypes, steps):
        names = {step} if step else {group.implementation for group in own.optimizer_groups}
        values = {"micro_batch": size, "reduce_dtype": str(dtype)}
        if allowed(request, values) and all(allowed(request, {"optimizer_implementation": name}) for name in names):
            yield Training(micro_batch=size, reduce_dtype=dtype, optimizer_implementation=step)


def may_offload_activations(request: PlanRequest) -> bool:
    """Whether some global choices have activations in host memory, and others have not."""
    return len({blocks > 0 for _, blocks in _ways_out(request, activations=True)}) > 1


def _ways_out(request: PlanRequest, *, activations: bool) -> list[tuple[Moved | None, int]]:
    """What of units, if anything, and which activations are off the device; what frees less first.

    Both only where the fixed choices leave nothing else. Needs a client that can, and a cluster that says how much
    memory its hosts have and, for NVMe, how large its drives are.
    """
    known = all(group.host_memory_bytes for group in request.cluster.node_groups)
    drives = all(group.nvme_bytes for group in request.cluster.node_groups)
    moves = {
        None: True,
        Moved.STATE_TO_HOST: known and allows(request, ClientFeature.OPTIMIZER_OFFLOAD),
        Moved.STATE_TO_NVME: known and drives and allows(request, ClientFeature.OPTIMIZER_NVME),
        Moved.UNITS: known and allows(request, ClientFeature.OFFLOAD),
    }
    blocks = ACTIVATION_OFFLOADS if known and allows(request, ClientFeature.ACTIVATION_OFFLOAD) else (0,)
    pairs = [
        (moved, of_blocks)
        for (moved, is_possible), of_blocks in product(moves.items(), blocks)
        if is_possible
        and any(allowed(request, {**names, "activation_offload": of_blocks}) for names in _NAMES[moved])
    ]
    alone = [pair for pair in pairs if not (pair[0] and pair[1])] or pairs
    return alone if activations else [pair for pair in alone if not pair[1]] or alone


def _family(request: PlanRequest, parts: Partition, moved: Moved | None) -> Offload | None:
    if moved is None:
        return ON_DEVICE if may_stay(request, parts) else None
    return offloads(request, parts, moved)


def _is_left(request: PlanRequest, moved: Moved | None, blocks: int) -> bool:
    return any(allowed(request, {**names, "activation_offload": blocks}) for names in _NAMES[moved])


_NAMES: dict[Moved | None, tuple[dict[str, str], ...]] = {
    None: ({"offload": "none", "optimizer_offload": "none"},),
    Moved.UNITS: tuple({"offload": share, "optimizer_offload": "none"} for share in ("some", "all")),
    Moved.STATE_TO_HOST: tuple({"offload": "none", "optimizer_offload": share} for share in ("host", "host:all")),
    Moved.STATE_TO_NVME: tuple({"offload": "none", "optimizer_offload": share} for share in ("nvme", "nvme:all")),
}
"""What fixed choices call it: some units, or all of them."""


def _words(candidate: Candidate, grouping: str, trainings: Sequence[Training]) -> str:
    mesh, training = candidate.mesh, candidate.training
    several = {
        field: len({getattr(one, field) for one in trainings}) > 1
        for field in ("micro_batch", "reduce_dtype", "optimizer_implementation")
    }
    parts = [
        f"micro-batch {training.micro_batch}" if several["micro_batch"] else "",
        f"gradients reduced in {training.reduce_dtype or 'their own type'}" if several["reduce_dtype"] else "",
        f"optimizer {training.optimizer_implementation or 'as given'}"
        if several["optimizer_implementation"]
        else "",
        f"mesh {_mesh_words(mesh)}",
        f"large units on {_mesh_words(candidate.large_mesh)}" if candidate.large_mesh else "",
        grouping,
        _CUTS[candidate.cut],
        "gathered in place" if candidate.alias_gathers else "",
        _SYNCS[candidate.gradient_sync],
        "kept between micro-batches" if candidate.keeps_gathered else "",
    ]
    return ", ".join(part for part in parts if part)


def _mesh_words(mesh: MeshPlan) -> str:
    return f"{mesh.replicate} x {mesh.shard}" if mesh.replicate > 1 else str(mesh.shard)


_OFFLOADED = {
    0: "",
    1: "activations of all blocks in host memory",
    2: "activations of every second block in host memory",
    4: "activations of every fourth block in host memory",
}
_CUTS = {
    None: "",
    Cut.EVEN: "cut evenly",
    Cut.RAGGED: "ragged layouts",
}
_SYNCS = {
    GradientSync.EVERY_MICRO_BATCH: "",
    GradientSync.LAST_MICRO_BATCH: "gradients reduced on the last micro-batch",
    GradientSync.ALL_REDUCE_ON_LAST: "all-reduced on the last micro-batch",
}


def _accumulations(request: PlanRequest, training: Training) -> Iterator[tuple[GradientSync, bool]]:
    several = num_micro_batches(request, training.micro_batch) > 1 and allows(request, ClientFeature.ACCUMULATION)
    for sync in GradientSync if several else (GradientSync.EVERY_MICRO_BATCH,):
        if sync is GradientSync.LAST_MICRO_BATCH and not _sums_take_zeros(request.workload, training):
            continue
        for keeps in (False, True) if several else (False,):
            if allowed(request, {"gradient_sync": sync.value, "reshard_after_backward": not keeps}):
                yield sync, keeps


def _sums_take_zeros(workload: Workload, training: Training) -> bool:
    """Whether FSDP2 can reduce a skipped module's zeros, in `param_dtype`, with sums of micro-batches."""
    types = (None, workload.precision.param_dtype)
    return not workload.conditional or training.reduce_dtype in types
