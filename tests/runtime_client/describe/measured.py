"""Memory of a model that really runs, as torch's own tracker sees it."""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper

from runtime_client.describe import cross_entropy_loss


def measured_peak_bytes(model: nn.Module, ids: Tensor, checkpointed: Iterable[str]) -> int:
    """Peak of everything but parameters, buffers and inputs over one forward and backward.

    Args:
        model: changed in place: its checkpointed modules are wrapped.
        ids: token ids `(batch, sequence)`.
        checkpointed: paths of modules.
    """
    for path in checkpointed:
        parent, _, name = path.rpartition(".")
        shell = checkpoint_wrapper(model.get_submodule(path), CheckpointImpl.NO_REENTRANT)
        setattr(model.get_submodule(parent), name, shell)
    tracker = MemTracker()
    tracker.track_external(model, ids)
    outside = sum(p.nbytes for p in model.parameters()) + sum(b.nbytes for b in model.buffers()) + ids.nbytes
    with tracker:
        output = model(ids)
        loss = cross_entropy_loss(output, (ids,), {})
        del output
        loss.backward()
    return sum(device["Total"] for device in tracker.get_tracker_snapshot("peak").values()) - outside
