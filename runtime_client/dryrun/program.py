"""The stream program of the real FSDP2 code: what runs on which stream, after what, in issue order.

Everything the host issues in the micro-batches of one optimizer step is recorded: FSDP2's own operations one by
one, the model's kernels collapsed into runs. Events are resolved into edges from operation to operation, reduced to
those that nothing else implies, so that two programs can be compared.
"""

from torch.distributed.fsdp import FSDPModule

from planner.program.edges import resolve_edges
from planner.program.events import Stream
from planner.program.outline import Outline, OutlineOperation
from planner.schema import Decisions
from runtime_client.dryrun import recording_device
from runtime_client.dryrun.observer import Observation, Observer
from runtime_client.dryrun.recording_device import DeviceLog
from runtime_client.dryrun.rehearsal import Build, Rehearsal, rehearse


def record_program(build: Build, decisions: Decisions, *, sequence: int) -> Outline:
    """Run the micro-batches of two steps as rank 0 of `decisions.mesh` and record those of the second.

    In the first FSDP2 sets up its streams and learns the order of the units. Between the two the gradients are
    dropped and the end of the optimizer is marked, but no parameter changes.
    """
    log = DeviceLog()
    with rehearse(build, decisions, sequence=sequence, optimizer_groups=()) as rehearsal:
        observer = Observer(decisions.units, log)
        for index in range(decisions.num_micro_batches):
            rehearsal.micro_batch(index)
        rehearsal.optimizer_step()
        rehearsal.model.zero_grad(set_to_none=True)
        with recording_device.logging_to(log), observer:
            for index in range(decisions.num_micro_batches):
                rehearsal.micro_batch(index)
                observer.end_micro_batch()
        streams = _stream_names(rehearsal)
    waits = resolve_edges(log.entries)
    return tuple(_recorded(seen, streams, waits[i]) for i, seen in enumerate(observer.observations))


def _stream_names(rehearsal: Rehearsal) -> dict[int, Stream]:
    assert isinstance(rehearsal.model, FSDPModule)
    context = rehearsal.model._get_fsdp_state()._comm_ctx
    streams = {
        Stream.COMPUTE: recording_device.current_stream(),
        Stream.COPY_IN: context.all_gather_copy_in_stream,
        Stream.GATHER: context.all_gather_stream,
        Stream.REDUCE: context.reduce_scatter_stream,
        Stream.ALL_REDUCE: context.all_reduce_stream,
    }
    if rehearsal.applied.activation_offload is not None:
        streams[Stream.OFFLOAD] = rehearsal.applied.activation_offload.stream
    return {stream.number: name for name, stream in streams.items()}


def _recorded(seen: Observation, streams: dict[int, Stream], waits: tuple[int, ...]) -> OutlineOperation:
    return OutlineOperation(
        stream=streams[seen.stream],
        kind=seen.kind,
        unit=seen.unit,
        phase=seen.phase,
        micro_batch=seen.micro_batch,
        waits=waits,
        size_bytes=seen.size_bytes,
        num_kernels=seen.num_kernels,
    )
