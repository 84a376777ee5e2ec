"""Whether this machine has the memory that a way of loading takes, looked at before anything is built."""

import os
from pathlib import Path
from typing import Literal

from planner.schema import Plan, PlanBody, WeightsWay
from runtime_client.weights.errors import HostMemoryTooSmall

_CGROUP = Path("/sys/fs/cgroup/memory.max")
_REMEDIES = {
    "every_rank": "build the model on_meta() and use load_safetensors, or load_from_rank_0",
    "rank_0": "build the model on_meta() on every rank and use load_safetensors",
    "shards": "use nodes with more memory, or fewer ranks on each",
}


def check_host_memory(
    plan: Plan | PlanBody, way: Literal["every_rank", "rank_0", "shards"], *, host_bytes: int | None = None
) -> WeightsWay | None:
    """Refuse a way of loading that would have this machine killed for lack of memory; call it before building.

    Args:
        plan: Says what each way takes (`reasons.weights`), on a node of the planned cluster.
        way: `every_rank` builds the whole model in each process, `rank_0` in one (`load_from_rank_0`), and with
            `shards` each rank reads what it holds (`load_safetensors`, `load_checkpoint`).
        host_bytes: Memory of this machine; by default what it has, or what its control group may use.

    Returns:
        What the way takes; None for a plan that does not say.

    Raises:
        HostMemoryTooSmall: the way takes more.
    """
    body = plan.body if isinstance(plan, Plan) else plan
    ways = [one for one in body.reasons.weights if one.task == "load" and one.way == way]
    if not ways:
        return None
    (found,) = ways
    available = host_bytes if host_bytes is not None else machine_bytes()
    if found.needed_bytes > available:
        raise HostMemoryTooSmall(
            f"loading by {way} takes {found.needed_bytes / 2**30:.1f} GiB of host memory on a node, and there are "
            f"{available / 2**30:.1f} GiB: {_REMEDIES[way]}"
        )
    return found


def machine_bytes() -> int:
    """Host memory that the processes of this machine, or of its control group, may use in all."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allowed = _CGROUP.read_text().strip() if _CGROUP.is_file() else "max"
    return min(physical, int(allowed)) if allowed.isdigit() else physical
