"""How the weights of a planned model can be loaded and saved, and the memory that each way takes at its peak."""

from math import prod

from planner.program.inputs import meshes_of, partition_of
from planner.schema import Decisions, MemoryCategory, Parameter, PlanRequest, Predictions, StateTier, WeightsWay

_RESIDENT = (MemoryCategory.PARAMETERS, MemoryCategory.OPTIMIZER, MemoryCategory.BUFFERS)


def weights_ways(request: PlanRequest, decisions: Decisions, predictions: Predictions) -> tuple[WeightsWay, ...]:
    """The ways that the client has, those that need least care last.

    Host memory is that of a node, of the smallest kind of node where there are several. Offloaded shards are on the
    host whatever the way: while loading the parameters alone, while saving all that the step has there.
    """
    group = min(request.cluster.node_groups, key=lambda one: one.host_memory_bytes)
    ranks, limit = group.devices_per_node, group.host_memory_bytes
    whole = model_bytes(request)
    largest, offloaded = _slices(request, decisions)
    loaded = ranks * offloaded
    kept = ranks * predictions.host_bytes
    return (
        _on_host("load", "every_rank", ranks * whole, limit),
        _on_host("load", "rank_0", whole + loaded, limit),
        _on_host("load", "shards", ranks * largest + loaded, limit),
        WeightsWay(
            task="save",
            way="on_device",
            memory="device",
            needed_bytes=resident_bytes(predictions) + whole,
            limit_bytes=predictions.budget.budget_bytes,
        ),
        _on_host("save", "rank_0", whole + kept, limit),
        _on_host("save", "shards", ranks * largest + kept, limit),
    )


def model_bytes(request: PlanRequest) -> int:
    """The whole model as it is stored: every parameter in its own element type, tied ones once, and buffers."""
    parameters = (parameter for _, parameter in request.model.iter_parameters() if parameter.tied_to is None)
    return sum(parameter.size_bytes for parameter in parameters) + request.model.buffers_bytes


def resident_bytes(predictions: Predictions) -> int:
    """What lies on a device between two steps."""
    categories = predictions.peak.by_category_bytes
    return sum(categories.get(category, 0) for category in _RESIDENT)


def _on_host(task: str, way: str, needed_bytes: int, limit_bytes: int) -> WeightsWay:
    return WeightsWay.model_validate(
        {"task": task, "way": way, "memory": "host", "needed_bytes": needed_bytes, "limit_bytes": limit_bytes}
    )


def _slices(request: PlanRequest, decisions: Decisions) -> tuple[int, int]:
    """Bytes of the largest piece that a rank has of a parameter, and of all its offloaded pieces."""
    parts = partition_of(request.model, decisions)
    on_host = {unit.modules[0] for unit in decisions.units if unit.parameter_tier is not StateTier.DEVICE}
    layouts = {layout.name: layout for layout in decisions.layouts}
    ragged = {
        entry.parameter: layouts[name].shard_elements
        for unit in decisions.units
        for name in unit.layouts
        for entry in layouts[name].entries
    }
    dims = {entry.parameter: entry.dim for entry in decisions.shard_dims}
    pieces = [
        (
            _piece_bytes(parameter, mesh.shard, dims.get(name, 0), ragged.get(name)),
            unit.modules[0] in on_host,
        )
        for unit, mesh in zip(parts.units, meshes_of(decisions, parts), strict=True)
        for name, parameter in unit.parameters
    ]
    largest = max((size for size, _ in pieces), default=0)
    return largest, sum(size for size, is_on_host in pieces if is_on_host)


def _piece_bytes(parameter: Parameter, shard: int, dim: int, shard_elements: int | None) -> int:
    """Of a ragged buffer at most a whole shard of it, else as many rows as a rank gets at most."""
    num_elements = prod(parameter.shape)
    if not num_elements:
        return 0
    itemsize = parameter.size_bytes // num_elements
    if shard_elements is not None:
        return min(num_elements, shard_elements) * itemsize
    return -(-parameter.shape[dim] // shard) * (num_elements // parameter.shape[dim]) * itemsize
