"""What a plan leaves to the trainer, said where the usual way would not fit or would waste memory."""

from collections.abc import Iterator

from planner.program.inputs import partition_of
from planner.schema import Decisions, NodeGroup, PlanRequest, Predictions
from planner.weights import model_bytes, resident_bytes

_GIB = 2**30
_NUM_NAMED = 3


def trainer_notes(request: PlanRequest, decisions: Decisions, predictions: Predictions) -> Iterator[str]:
    """One sentence for each of loading, saving and unused parameters that needs care."""
    yield from _loading(request)
    yield from _saving(request, predictions)
    yield from _unused(request, decisions)


def _loading(request: PlanRequest) -> Iterator[str]:
    """Whether each rank of a node can build the whole model in host memory before it is sharded.

    A checkpoint that every rank loads is there once for each device of a node; on the meta device all ranks but one
    hold nothing.
    """
    one = model_bytes(request)
    for group in request.cluster.node_groups:
        if group.host_memory_bytes and one * group.devices_per_node > group.host_memory_bytes:
            yield _loading_note(one, group)
            return


def _loading_note(one: int, group: NodeGroup) -> str:
    host = group.host_memory_bytes
    remedy = (
        f"load it in rank 0 alone ({_gib(one)}), build it on the meta device elsewhere, and broadcast"
        if one <= host
        else f"build it on the meta device and load each rank's shards: the model alone takes {_gib(one)}"
    )
    every = _gib(one * group.devices_per_node)
    return f"if every rank loads the model, a node needs {every} of its {_gib(host)} of host memory; {remedy}"


def _saving(request: PlanRequest, predictions: Predictions) -> Iterator[str]:
    """Whether a device can hold the whole model beside its shards and state, as with a full state dict.

    It is gathered parameter by parameter in the storage types (torch 2.13,
    `torch/distributed/checkpoint/state_dict.py`, `full_state_dict` without `cpu_offload`).
    """
    resident = resident_bytes(predictions)
    needed = resident + model_bytes(request)
    if request.cluster.num_devices > 1 and needed > predictions.budget.budget_bytes:
        yield (
            f"a full state dict on one device takes {_gib(needed)} with the {_gib(resident)} that lie there, of "
            f"{_gib(predictions.budget.budget_bytes)}; save shards, or gather into host memory"
        )


def _unused(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    """Trainable parameters that no gradient reaches."""
    parts = partition_of(request.model, decisions)
    names = [
        name
        for unit in parts.units
        for name, parameter in unit.parameters
        if parameter.requires_grad and name not in parts.with_gradient
    ]
    if names:
        sizes = dict(request.model.iter_parameters())
        num_elements = sum(sizes[name].num_elements for name in names)
        more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
        yield (
            f"no gradient reaches {', '.join(names[:_NUM_NAMED])}{more} ({num_elements} elements); freeze what is "
            "never used: reduced as zeros it costs gradients and optimizer state"
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB"
