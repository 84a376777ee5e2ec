"""Device memory that no tensor can have: the driver's context and communicators. Only devices tell."""

import torch
import torch.distributed as dist

from runtime_client.profile.collectives import Transfer
from runtime_client.profile.world import Level, World

_PROBE_BYTES = 2**24


def context_bytes(device: torch.device) -> int | None:
    """Memory taken on the device before anything else is; None on a CPU. What other processes hold counts too."""
    if device.type == "cpu":
        return None
    torch.zeros(1, device=device).add_(1)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return _used_bytes(device)


def communicator_bytes(world: World) -> int | None:
    """Memory that one more communicator over all ranks takes; None on a CPU or for a single rank."""
    if world.device.type == "cpu" or world.num_ranks == 1:
        return None
    world.wait()
    torch.cuda.empty_cache()
    before = _used_bytes(world.device)
    group = dist.new_group(list(range(world.num_ranks)))
    ranks = tuple(range(world.num_ranks))
    level = Level(num_ranks=world.num_ranks, num_nodes=world.num_nodes, group=group, ranks=ranks)
    Transfer("all_gather", level, _PROBE_BYTES, world.device).run()
    Transfer("reduce_scatter", level, _PROBE_BYTES, world.device).run()
    torch.cuda.synchronize(world.device)
    torch.cuda.empty_cache()
    after = _used_bytes(world.device)
    dist.destroy_process_group(group)
    taken: list[int] = world.gathered(max(0, after - before))
    return max(taken)


def _used_bytes(device: torch.device) -> int:
    """Of the device, less what torch holds for tensors."""
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)
