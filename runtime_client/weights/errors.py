"""Errors of loading and initialising; the model is then as it was."""

from planner.schema.errors import ShardwrightError


class BuffersLost(ShardwrightError):
    """Buffers that no checkpoint has were made on the meta device, so that their values are gone."""

    code = "buffers_lost"


class CheckpointMismatch(ShardwrightError):
    """A checkpoint that does not have exactly the tensors of the model."""

    code = "checkpoint_mismatch"


class CheckpointUnreadable(ShardwrightError):
    """There is no checkpoint at a path, or files of it are missing."""

    code = "checkpoint_unreadable"


class HostMemoryTooSmall(ShardwrightError):
    """A way of loading takes more host memory than there is."""

    code = "host_memory_too_small"


class NoInitialiser(ShardwrightError):
    """A module with parameters does not say how they are initialised."""

    code = "no_initialiser"
