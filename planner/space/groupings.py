"""Which modules become units: blocks alone, several together or in halves, embedding and head apart or not.

Blocks are cut at points that the description knows: between two blocks (several neighbours become one unit), and
between the parts of a block (its attention and its MLP, each with the norm before it, become units).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.program.parts import expanded
from planner.program.units import Partition, Unit, contains, partition, unused_parameters
from planner.schema import CallRole, ClientFeature, InconsistentRequest, ModelDescription, PlanRequest, Workload
from planner.schema.module_paths import modules_above
from planner.space.fixed import allowed, allows

BLOCKS_PER_UNIT = (1, 2, 4)
"""How many neighbouring blocks a unit may have."""
Modules = tuple[tuple[str, ...], ...]
"""Modules of each unit but the root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Units besides the root."""

    label: str
    modules: Modules


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """A grouping with the partition of the model that it makes."""

    label: str
    partition: Partition


def allowed_partitions(request: PlanRequest) -> list[Grouped]:
    """Groupings that FSDP2 takes: one storage dtype for all that is trainable in a unit.

    Raises:
        InconsistentRequest: every grouping has a unit of several storage dtypes.
    """
    parts = [Grouped(label=one.label, partition=_partition(request, one)) for one in groupings(request)]
    sound = [one for one in parts if not any(_dtypes(unit)[1:] for unit in one.partition.units)]
    if parts and not sound:
        mixed = next(unit for unit in parts[0].partition.units if _dtypes(unit)[1:])
        raise InconsistentRequest(
            f"model: trainable parameters of unit {mixed.name!r} are stored in {' and '.join(_dtypes(mixed))}, and "
            "fully_shard takes one storage dtype in each unit; store them alike, or freeze some"
        )
    return sound


def _partition(request: PlanRequest, grouping: Grouping) -> Partition:
    inside = expanded(request.model, grouping.modules, ())
    parts = partition(inside.model, grouping.modules, inside.blocks)
    return replace(parts, with_zeros=unused_parameters(parts)) if request.workload.conditional else parts


def _dtypes(unit: Unit) -> list[str]:
    return sorted({parameter.dtype.value for _, parameter in unit.parameters if parameter.requires_grad})


def groupings(request: PlanRequest) -> Iterator[Grouping]:
    """Every way to cut the blocks, with embedding, and norm and head, on their own or in the root.

    Conditional modules stay with the units around them, which every rank gathers.
    """
    met: set[Modules] = set()
    for label, blocks in _cuts(request):
        for others, extra in _ends(request):
            modules = _run_by_all(request.workload, (*blocks, *extra))
            if modules not in met:
                met.add(modules)
                yield Grouping(label=f"{label}{others}", modules=modules)


def _run_by_all(workload: Workload, modules: Modules) -> Modules:
    if not workload.conditional:
        return modules
    left = (tuple(path for path in unit if not workload.is_conditional(path)) for unit in modules)
    return tuple(unit for unit in left if unit)


def _cuts(request: PlanRequest) -> Iterator[tuple[str, Modules]]:
    model = request.model
    blocks = block_paths(model)
    groups = allows(request, ClientFeature.GROUPED_UNITS)
    for size in BLOCKS_PER_UNIT if groups else (1,):
        if size > 1 and (len(blocks) < 2 * size or not _are_neighbours(model, blocks)):
            continue
        if allowed(request, {"blocks_per_unit": size, "split_blocks": False}):
            yield (
                "" if size == 1 else f"{size} blocks a unit, ",
                tuple(tuple(blocks[start : start + size]) for start in range(0, len(blocks), size)),
            )
    halves = _halves(model, blocks) if groups and _are_parts_measured(request) else None
    if halves and allowed(request, {"blocks_per_unit": 1, "split_blocks": True}):
        yield "blocks in halves, ", halves


def _are_parts_measured(request: PlanRequest) -> bool:
    """Whether parts have times like their blocks: a measured block and estimated parts could not be compared."""
    measured = {call.kind for call in request.profile.calls} if request.profile else set()
    kinds = request.model.kinds
    return all(part.kind in measured for name in measured & kinds.keys() for part in kinds[name].parts if part.path)


def _are_neighbours(model: ModelDescription, blocks: Sequence[str]) -> bool:
    """Whether nothing with parameters runs between two blocks, so that neighbours can be gathered together."""
    order = [call.path for call in model.calls]
    places = sorted(order.index(path) for path in blocks)
    between = {order[place] for place in range(places[0], places[-1])} - set(blocks)
    with_parameters = {module.path for module in model.modules if model.parameter_sets[module.parameters]}
    return not between & with_parameters


def _halves(model: ModelDescription, blocks: Sequence[str]) -> Modules | None:
    """Each block as units of a norm and the module after it; None where the parts of some block are not these."""
    kinds = {call.path: model.kinds[call.kind] for call in model.calls}
    with_parameters = {name.rpartition(".")[0] for name, _ in model.iter_parameters()}
    found: list[tuple[str, ...]] = []
    below: dict[str, list[str]] = {}
    for path in with_parameters:
        for around in (path, *modules_above(path)):
            below.setdefault(around, []).append(path)
    for block in blocks:
        parts = [
            (f"{block}.{part.path}", model.kinds[part.kind].role)
            for part in kinds[block].parts
            if part.path and f"{block}.{part.path}" in below
        ]
        paths = [path for path, _ in parts]
        owned = below.get(block, [])
        if len(paths) < 2 or any(not any(contains(part, path) for part in paths) for path in owned):
            return None
        pending: list[str] = []
        for path, role in parts:
            pending.append(path)
            if role is not CallRole.NORM:
                found.append(tuple(pending))
                pending = []
        if pending:
            found[-1] = (*found[-1], *pending)
    return tuple(found) or None


def _ends(request: PlanRequest) -> Iterator[tuple[str, Modules]]:
    model = request.model
    embedding = _embedding(model)
    head = _norm_and_head(model) if allows(request, ClientFeature.GROUPED_UNITS) else None
    for own_embedding in (False, True):
        for own_head in (False, True):
            if (own_embedding and embedding is None) or (own_head and head is None):
                continue
            if not allowed(request, {"units.embedding": own_embedding, "units.head": own_head}):
                continue
            extra = [unit for own, unit in ((own_embedding, embedding), (own_head, head)) if own and unit]
            own = [name for flag, name in ((own_embedding, "embedding"), (own_head, "norm and head")) if flag]
            yield f"{' and '.join(own)} on their own" if own else "embedding and head in the root", tuple(extra)


def block_paths(model: ModelDescription) -> list[str]:
    """Blocks that run once and can be units, in the order of their forward."""
    with_parameters = {module.path for module in model.modules if model.parameter_sets[module.parameters]}
    ties = [(name, p.tied_to) for name, p in model.iter_parameters() if p.tied_to is not None]
    paths: dict[str, int] = {}
    for call in model.calls:
        if model.kinds[call.kind].role is CallRole.BLOCK:
            paths[call.path] = paths.get(call.path, 0) + 1
    return [
        path
        for path, runs in paths.items()
        if runs == 1
        and path in with_parameters
        and not _shares_parameters(ties, path)
        and not any(above in paths for above in modules_above(path))
    ]


def _shares_parameters(ties: Sequence[tuple[str, str]], path: str) -> bool:
    """Whether a parameter below `path` is tied to one elsewhere: both must then lie in one unit, the root."""
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
    blocks = set(block_paths(model))
    is_apart = not any(above in blocks for above in (path, *modules_above(path))) and not any(
        contains(path, block) for block in blocks
    )
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
