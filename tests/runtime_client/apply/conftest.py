"""A process group that talks to nobody: enough to shard a model, and far cheaper than ranks."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

WORLD_SIZE = 4


@pytest.fixture
def world() -> Iterator[int]:
    """Rank 0 of four ranks."""
    dist.init_process_group("fake", rank=0, world_size=WORLD_SIZE, store=FakeStore())
    yield WORLD_SIZE
    dist.destroy_process_group()
