"""Two ranks that start a job as often as standard input says so: JSON lines of what happens and where the cache is.

`URL REQUEST` are arguments. Each job has processes of its own, forked from this one, which nobody looks after. What
they say, and how they ended, are JSON lines.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.distributed.fsdp import fully_shard

from planner.schema import Plan, PlanRequest, ShardwrightError
from runtime_client.agreement import share_plan
from runtime_client.apply import apply_plan
from runtime_client.client import PlanClient
from tests.real.launch import free_port
from tests.real.towers import BATCH, SEQUENCE, WIDTH, Towers, build

CLIENT_DEADLINE_S, DEADLINE_S = 3.0, 8.0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def start(case: str, cache: str) -> dict[str, Any]:
    """Ask, share, apply, and one backward; a rank may die or refuse in between."""
    rank = dist.get_rank()
    request = PlanRequest.from_json(Path(sys.argv[2]).read_text())

    def ask() -> Plan:
        if case == "dies asking":
            signal.setitimer(signal.ITIMER_REAL, 1.0)
            signal.signal(signal.SIGALRM, lambda *_: die())
        return PlanClient(sys.argv[1], deadline_s=CLIENT_DEADLINE_S, cache_dir=cache).plan(request).plan

    plan = share_plan(ask, deadline_s=DEADLINE_S)
    has_plan = PrefixStore("has plan", _get_default_store())
    has_plan.set(str(rank), "1")
    if case == f"rank {rank} dies":
        has_plan.wait([str(1 - rank)])
        die()
    model = build()
    if case == "rank 1 differs" and rank == 1:
        model.head.weight.requires_grad_(False)
    apply_plan(model, plan, device_type="cpu", deadline_s=DEADLINE_S / 2)
    backward(model)
    return {"plan": plan.envelope.plan_id}


def backward(model: Towers) -> None:
    tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
    model(tokens, torch.ones(BATCH, SEQUENCE, WIDTH)).sum().backward()


def start_plainly(case: str) -> dict[str, Any]:
    """The same by hand-written calls, where ranks do not do the same."""
    model, mesh = build(), init_device_mesh("cpu", (dist.get_world_size(),))
    try:
        if case == "plain refusal" and dist.get_rank() == 1:
            model.layers[0].scale = torch.nn.Parameter(torch.tensor(1.0))
        for layer in model.layers:
            keep = case == "plain difference" and dist.get_rank() == 1
            fully_shard(layer, mesh=mesh, reshard_after_forward=not keep)
        fully_shard(model, mesh=mesh)
    except ValueError as error:
        say(dist.get_rank(), raised=str(error))
        time.sleep(60)
    say(dist.get_rank(), sharded=True)
    for _ in range(3):
        backward(model)
    return {"trained": True}


def say(rank: int, **words: Any) -> None:
    os.write(1, json.dumps({"rank": rank, **words}).encode() + b"\n")  # in one piece, since both ranks write here


def run(rank: int, case: str, cache: str) -> None:
    """One rank from its first moment to its last."""
    os.environ["RANK"] = str(rank)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    try:
        answer = start_plainly(case) if case.startswith("plain") else start(case, cache)
    except ShardwrightError as error:
        answer = {"error": error.code, "message": str(error)}
    say(rank, **answer)


def main() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        pids = []
        for rank in range(2):
            pids.append(os.fork())
            if pids[-1] == 0:
                run(rank, **command)
                os._exit(0)
        say(-1, pids=pids)
        for rank, pid in enumerate(pids):
            say(rank, status=os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    main()
