"""The ranks of the job that is profiled: what they agree on, and the groups that meshes make of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist

_DEADLINE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Ranks numbered node by node, as torchrun numbers them; one rank where nothing was initialised."""

    device: torch.device
    rank: int
    num_ranks: int
    ranks_per_node: int

    @classmethod
    def join(cls, device_type: str) -> Self:
        """The ranks of `torchrun`, else this process alone. Initialises the default group where there is none.

        Args:
            device_type: `cpu` (gloo) or `cuda` (NCCL).
        """
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        device = torch.device(device_type, local_rank) if device_type != "cpu" else torch.device("cpu")
        if device_type != "cpu":
            torch.cuda.set_device(device)
        if "RANK" in os.environ and not dist.is_initialized():
            dist.init_process_group("gloo" if device_type == "cpu" else "nccl", timeout=_DEADLINE)
        if not dist.is_initialized():
            return cls(device=device, rank=0, num_ranks=1, ranks_per_node=1)
        num_ranks = dist.get_world_size()
        local = int(os.environ.get("LOCAL_WORLD_SIZE", str(num_ranks)))
        return cls(device=device, rank=dist.get_rank(), num_ranks=num_ranks, ranks_per_node=local)

    @property
    def num_nodes(self) -> int:
        """Nodes of the job."""
        return -(-self.num_ranks // self.ranks_per_node)

    @property
    def host(self) -> torch.device:
        """The host as a device."""
        return torch.device("cpu")

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.num_ranks > 1:
            dist.barrier()

    def slowest(self, samples: Sequence[int]) -> list[int]:
        """Of each sample the longest over all ranks."""
        if self.num_ranks == 1:
            return list(samples)
        longest = torch.tensor(samples, dtype=torch.int64, device=self.device)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        return [int(sample) for sample in longest.tolist()]

    def gathered(self, value: Any) -> list[Any]:  # noqa: ANN401 - anything that pickles
        """What each rank has."""
        if self.num_ranks == 1:
            return [value]
        values: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(values, value)
        return values

    def agreed(self, value: int) -> int:
        """Rank 0's number, on every rank: for how often to repeat what all of them take part in."""
        if self.num_ranks == 1:
            return value
        shared = torch.tensor([value], dtype=torch.int64, device=self.device)
        dist.broadcast(shared, src=0)
        return int(shared.item())


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Groups of one shape that cover the world, and this rank's group of them."""

    num_ranks: int
    num_nodes: int
    group: dist.ProcessGroup
    ranks: tuple[int, ...]


def levels(world: World, *, every_mesh: bool = False) -> list[Level]:
    """Groups of a plan's meshes: the world, the ranks of a node, ranks of equal place on all nodes.

    Args:
        world: the job.
        every_mesh: of all meshes `replicate x shard` of the world instead; each group has a communicator of its
            own, so that this takes memory and time.
    """
    if world.num_ranks == 1:
        return []
    found: dict[tuple[int, int], Level] = {}
    for shard in _shard_degrees(world, every_mesh=every_mesh):
        rows = [tuple(range(start, start + shard)) for start in range(0, world.num_ranks, shard)]
        columns = [tuple(range(start, world.num_ranks, shard)) for start in range(shard)]
        for groups in (rows, columns):
            shape = (len(groups[0]), max(_num_nodes(world, ranks) for ranks in groups))
            if shape[0] > 1 and shape not in found:
                found[shape] = _level(world, groups, shape)
    return list(found.values())


def _shard_degrees(world: World, *, every_mesh: bool) -> list[int]:
    divisors = [degree for degree in range(world.num_ranks, 0, -1) if world.num_ranks % degree == 0]
    if every_mesh:
        return divisors
    return [degree for degree in divisors if degree in (world.num_ranks, world.ranks_per_node)]


def _num_nodes(world: World, ranks: Sequence[int]) -> int:
    return len({rank // world.ranks_per_node for rank in ranks})


def _level(world: World, groups: Sequence[tuple[int, ...]], shape: tuple[int, int]) -> Level:
    mine = next(ranks for ranks in groups if world.rank in ranks)
    whole = dist.group.WORLD
    if shape[0] == world.num_ranks and whole is not None:
        return Level(num_ranks=shape[0], num_nodes=shape[1], group=whole, ranks=mine)
    made = {ranks: dist.new_group(list(ranks), timeout=_DEADLINE) for ranks in groups}
    return Level(num_ranks=shape[0], num_nodes=shape[1], group=made[mine], ranks=mine)
