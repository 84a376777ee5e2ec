"""Why optimizer state cannot be kept outside the device, or not be read again."""

from planner.schema.errors import ShardwrightError


class UnsupportedOptimizer(ShardwrightError):
    """An optimizer whose state the client cannot keep outside the device."""

    code = "unsupported_offloaded_optimizer"


class StepAlreadyBegun(ShardwrightError):
    """Gradients are wanted, or changed, that the optimizer has used in backward already."""

    code = "step_already_begun"


class OptimizerStepFailed(ShardwrightError):
    """An earlier step ended half-way, so that parameters and optimizer state belong to different steps."""

    code = "optimizer_step_failed"


class OptimizerClosed(ShardwrightError):
    """The optimizer was closed and is asked for more."""

    code = "optimizer_closed"


class StateDirectoryMissing(ShardwrightError):
    """The plan keeps optimizer state on NVMe, and nobody said where."""

    code = "state_directory_missing"


class StateBufferTooSmall(ShardwrightError):
    """A staging buffer is smaller than the state of the largest unit."""

    code = "state_buffer_too_small"


class StateDirectoryInUse(ShardwrightError):
    """Another process, or another optimizer, has the optimizer state of this rank open."""

    code = "state_directory_in_use"


class StateExists(ShardwrightError):
    """The directory holds the optimizer state of an earlier run."""

    code = "optimizer_state_exists"


class StateMissing(ShardwrightError):
    """The optimizer state of a step is not there, or a file of it was removed."""

    code = "optimizer_state_missing"


class StateCorrupt(ShardwrightError):
    """Optimizer state that was read is not what was written."""

    code = "optimizer_state_corrupt"


class StateDiffers(ShardwrightError):
    """Optimizer state of another model, sharding or rank."""

    code = "optimizer_state_differs"


class StateNotWritten(ShardwrightError):
    """Optimizer state could not be written; the state of the step before is still there."""

    code = "optimizer_state_not_written"
