"""Why a ragged layout cannot be applied, or used."""

from planner.schema.errors import ShardwrightError
from runtime_client.errors import ApplyError


class UnsupportedTorch(ApplyError):
    """The installed torch is not one that ragged buffers were written against."""

    code = "unsupported_torch"


class InvalidLayout(ApplyError):
    """A layout contradicts itself, the model or the other decisions."""

    code = "invalid_layout"


class UnequalRanks(ApplyError):
    """A layout needs more of some ranks than of others, which FSDP2's even chunks cannot hold."""

    code = "unequal_ranks"


class FrozenBuffer(ShardwrightError):
    """A parameter was made trainable whose buffer was planned as frozen, so nothing would reduce its gradient."""

    code = "frozen_buffer"
