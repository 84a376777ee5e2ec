"""Global choices that are enumerated outside the solver: the mesh, and which modules become units of their own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from planner.catalog.torch_versions import supports_feature
from planner.costs.optimizer import largest_shard_degree
from planner.program.units import Partition, Unit, contains, partition
from planner.schema import (
    CallRole,
    ClientFeature,
    FixedChoice,
    InconsistentRequest,
    MeshPlan,
    ModelDescription,
    PlanRequest,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One global choice."""

    mesh: MeshPlan
    partition: Partition
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Units besides the root."""

    label: str
    modules: tuple[tuple[str, ...], ...]


def candidates(request: PlanRequest) -> Iterator[Candidate]:
    """Every mesh with every grouping, as the client's features and the fixed choices allow.

    Raises:
        InconsistentRequest: a fixed choice leaves none.
    """
    meshes = list(allowed_meshes(request))
    options = list(groupings(request))
    if not meshes or not options:
        raise InconsistentRequest(
            "fixed: no mesh and grouping is left; the choices for mesh.shard, mesh.replicate, units.embedding or "
            "units.head contradict the cluster, the model, its optimizer or the client's features"
        )
    parts = _partitions(request.model, options)
    for mesh in meshes:
        for label, part in parts.items():
            name = f"{mesh.replicate} x {mesh.shard}" if mesh.replicate > 1 else f"{mesh.shard}"
            yield Candidate(mesh=mesh, partition=part, label=f"mesh {name}, {label}")


def _partitions(model: ModelDescription, options: list[Grouping]) -> dict[str, Partition]:
    """Groupings that FSDP2 takes: one storage dtype for all that is trainable in a unit."""
    parts = {option.label: partition(model, option.modules) for option in options}
    sound = {label: part for label, part in parts.items() if not any(_dtypes(unit)[1:] for unit in part.units)}
    if not sound:
        mixed = next(unit for unit in next(iter(parts.values())).units if _dtypes(unit)[1:])
        raise InconsistentRequest(
            f"model: trainable parameters of unit {mixed.name!r} are stored in {' and '.join(_dtypes(mixed))}, and "
            "fully_shard takes one storage dtype in each unit; store them alike, or freeze some"
        )
    return sound


def _dtypes(unit: Unit) -> list[str]:
    return sorted({parameter.dtype.value for _, parameter in unit.parameters if parameter.requires_grad})


def allowed_meshes(request: PlanRequest) -> Iterator[MeshPlan]:
    """All factorisations of the world size, the fully sharded one first."""
    world = request.cluster.num_devices
    hybrid = allows(request, ClientFeature.HYBRID_MESH)
    largest = largest_shard_degree(request.workload, request.model.iter_parameters()) or world
    for shard in sorted((n for n in range(1, world + 1) if world % n == 0), reverse=True):
        if shard > largest:
            continue
        mesh = MeshPlan(replicate=world // shard, shard=shard)
        wanted = {"mesh.shard": mesh.shard, "mesh.replicate": mesh.replicate}
        if (hybrid or mesh.replicate == 1) and _allowed(request, wanted):
            yield mesh


def groupings(request: PlanRequest) -> Iterator[Grouping]:
    """Blocks are units; the embedding, and norm with head, are units of their own or belong to the root."""
    model = request.model
    blocks = tuple((path,) for path in _block_paths(model))
    embedding = _embedding(model)
    head = _norm_and_head(model) if allows(request, ClientFeature.GROUPED_UNITS) else None
    for own_embedding in (False, True):
        for own_head in (False, True):
            if (own_embedding and embedding is None) or (own_head and head is None):
                continue
            wanted = {"units.embedding": own_embedding, "units.head": own_head}
            if not _allowed(request, wanted):
                continue
            extra = [unit for own, unit in ((own_embedding, embedding), (own_head, head)) if own and unit]
            own = [name for flag, name in ((own_embedding, "embedding"), (own_head, "norm and head")) if flag]
            label = f"{' and '.join(own)} on their own" if own else "embedding and head in the root"
            yield Grouping(label=label, modules=(*blocks, *extra))


def allows(request: PlanRequest, feature: ClientFeature) -> bool:
    """Whether the caller's client, and the torch that it trains with, can apply a knob."""
    applied = request.client_features is None or feature in request.client_features
    return applied and supports_feature(feature, request.workload.torch_version)


class NoValueLeft(InconsistentRequest):
    """The fixed choices leave a knob no value, under one global choice at least."""


def _allowed(request: PlanRequest, values: Mapping[str, int]) -> bool:
    """Whether the fixed choices allow these values of global knobs."""
    return all(
        _is_same(choice.value, value)
        for choice in request.fixed
        for knob, value in values.items()
        if fnmatchcase(knob, choice.knob)
    )


def _is_same(chosen: object, value: object) -> bool:
    """Equality in which True is not 1."""
    return isinstance(chosen, bool) == isinstance(value, bool) and chosen == value


def allowed_values(request: PlanRequest, knob: str, values: tuple[object, ...]) -> tuple[object, ...]:
    """Values that the fixed choices leave to a knob.

    Raises:
        NoValueLeft: none is left.
    """
    left = values
    for index, choice in enumerate(request.fixed):
        if not fnmatchcase(knob, choice.knob):
            continue
        before, left = left, tuple(value for value in left if _is_same(choice.value, value))
        if left:
            continue
        if any(_is_same(choice.value, value) for value in values):
            raise NoValueLeft(
                f"fixed[{index}]: {choice.knob} = {choice.value!r} contradicts an earlier choice, "
                f"which fixes {knob} to {before[0]}; drop one of them"
            )
        raise NoValueLeft(
            f"fixed[{index}]: {choice.knob} = {choice.value!r} is not possible for {knob}; "
            f"possible values: {', '.join(map(str, values))}"
        )
    return left


GLOBAL_KNOBS = (
    "mesh.shard",
    "mesh.replicate",
    "units.embedding",
    "units.head",
    "forward_prefetch",
    "backward_prefetch",
)


def refuse_unknown_knobs(fixed: tuple[FixedChoice, ...], knobs: set[str]) -> None:
    """Raise InconsistentRequest for a fixed choice that no knob of the request matches."""
    known = {*knobs, *GLOBAL_KNOBS}
    for index, choice in enumerate(fixed):
        if not any(fnmatchcase(knob, choice.knob) for knob in known):
            raise InconsistentRequest(
                f"fixed[{index}].knob: {choice.knob!r} matches no knob; use one of {', '.join(GLOBAL_KNOBS)}, "
                "or a module pattern such as 'layers.*.reshard_after_forward' or 'layers.*.activation'"
            )


def _block_paths(model: ModelDescription) -> list[str]:
    with_parameters = {module.path for module in model.modules if model.parameter_sets[module.parameters]}
    paths: dict[str, int] = {}
    for call in model.calls:
        if model.kinds[call.kind].role is CallRole.BLOCK:
            paths[call.path] = paths.get(call.path, 0) + 1
    return [
        path
        for path, runs in paths.items()
        if runs == 1
        and path in with_parameters
        and not _shares_parameters(model, path)
        and not any(contains(other, path) for other in paths if other != path)
    ]


def _shares_parameters(model: ModelDescription, path: str) -> bool:
    """Whether a parameter below `path` is tied to one elsewhere: both must then lie in one unit, the root."""
    ties = [(name, p.tied_to) for name, p in model.iter_parameters() if p.tied_to is not None]
    return any(contains(path, name) != contains(path, target) for name, target in ties)


def _single(model: ModelDescription, role: CallRole) -> str | None:
    """Path of the only call of a role that owns parameters, unless they are tied."""
    with_parameters = {module.path for module in model.modules if model.parameter_sets[module.parameters]}
    paths = [
        call.path for call in model.calls if model.kinds[call.kind].role is role and call.path in with_parameters
    ]
    return paths[0] if len(paths) == 1 and _owns_parameters(model, paths[0]) else None


def _owns_parameters(model: ModelDescription, path: str) -> bool:
    tied = {p.tied_to for _, p in model.iter_parameters() if p.tied_to is not None}
    own = [module for module in model.modules if module.path == path]
    parameters = [p for module in own for p in model.parameter_sets[module.parameters]]
    names = {f"{path}.{parameter.name}" for parameter in parameters}
    is_apart = not any(contains(block, path) or contains(path, block) for block in _block_paths(model))
    return is_apart and bool(parameters) and not (names & tied) and all(p.tied_to is None for p in parameters)


def _embedding(model: ModelDescription) -> tuple[str, ...] | None:
    path = _single(model, CallRole.EMBEDDING)
    return None if path is None else (path,)


def _norm_and_head(model: ModelDescription) -> tuple[str, ...] | None:
    head = _single(model, CallRole.HEAD)
    if head is None:
        return None
    norms = [call.path for call in model.calls if model.kinds[call.kind].role is CallRole.NORM]
    position = [call.path for call in model.calls].index(head)
    before = [call.path for call in model.calls[:position]]
    last_block = max(
        (i for i, c in enumerate(model.calls) if model.kinds[c.kind].role is CallRole.BLOCK), default=-1
    )
    between = [path for path in norms if path in before[last_block + 1 :] and _owns_parameters(model, path)]
    return (*between[-1:], head)
