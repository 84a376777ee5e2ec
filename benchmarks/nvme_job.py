"""A job of two ranks whose optimizer state is on a disk, to be killed: what each rank does.

The ranks are forked from a process that has torch loaded already, so that two hundred starts take minutes.
"""

import hashlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from planner.schema import Decisions, MeshPlan, ShardwrightError, UnitPlan
from runtime_client.apply import apply_decisions
from runtime_client.fingerprint import iter_parameters
from runtime_client.offload.optimizer import OffloadedOptimizer
from runtime_client.offload.state_files import StateFiles

NUM_RANKS = 2
NUM_BLOCKS = 4
WIDTH = 256
BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What both ranks of a job are told."""

    folder: Path
    """`reference` in it holds one file for each step and rank, `state` the optimizer's state."""
    rendezvous: Path
    """File for torch's store; new for each job."""
    resume: int | None
    """Step to go on from; None begins."""
    last: int
    """Step to end after."""
    in_backward: bool
    """Begin the steps in backward."""


def fork_rank(rank: int, start: Start) -> tuple[int, int]:
    """Start a rank; returns its process and a pipe with what it reports, a line each."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        _be_rank(rank, start, writing)
    os.close(writing)
    return process, reading


def _be_rank(rank: int, start: Start, report: int) -> NoReturn:
    def say(line: str) -> None:
        os.write(report, f"{line}\n".encode())

    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), sys.stderr.fileno())
        rendezvous = dist.FileStore(str(start.rendezvous), NUM_RANKS)
        dist.init_process_group("gloo", store=rendezvous, rank=rank, world_size=NUM_RANKS)
        _train(rank, start, say)
        say("ended")
    except ShardwrightError as error:
        say(f"refused {error.code}: {error}")
    except BaseException:
        say("failed " + traceback.format_exc().replace("\n", " | "))
    os._exit(0)


def _train(rank: int, start: Start, say: Callable[[str], None]) -> None:
    model, optimizer = _build(start)
    reference = start.folder / "reference"
    if start.resume is not None:
        _load(model, reference / f"{rank}-{start.resume}.pt")
        say(f"resumed {start.resume} {_digest_of_state(optimizer)}")
    say("training")
    for step in range(start.resume or 0, start.last):
        generator = torch.Generator().manual_seed(1_000 * step + rank)
        model(torch.randn(BATCH, WIDTH, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if (reference / "recording").exists():
            shards = {name: _local(parameter) for name, parameter in iter_parameters(model)}
            torch.save(shards, reference / f"{rank}-{step + 1}.pt")
            say(f"recorded {step + 1} {_digest_of_state(optimizer)}")
        say(f"stepped {step + 1} {_digest(_local(p) for _, p in iter_parameters(model))}")
    optimizer.close()


def _build(start: Start) -> tuple[nn.Module, OffloadedOptimizer]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)) for _ in range(NUM_BLOCKS)]
    model = nn.Sequential(*blocks)
    units = tuple(UnitPlan(modules=(path,), optimizer_tier="nvme") for path in (*map(str, range(NUM_BLOCKS)), ""))
    decisions = Decisions(mesh=MeshPlan(shard=NUM_RANKS), units=units, micro_batch=1, num_micro_batches=1)
    mesh = init_device_mesh("cpu", (NUM_RANKS,), mesh_dim_names=("shard",))
    applied = apply_decisions(model, decisions, mesh)
    files = StateFiles(start.folder / "state", resume_step=start.resume)
    optimizer = applied.optimizer(torch.optim.AdamW, lr=1e-3, in_backward=start.in_backward, state_files=files)
    assert isinstance(optimizer, OffloadedOptimizer)
    return model, optimizer


def _load(model: nn.Module, path: Path) -> None:
    shards = torch.load(path)
    with torch.no_grad():
        for name, parameter in iter_parameters(model):
            _local(parameter).copy_(shards[name])


def _digest_of_state(optimizer: OffloadedOptimizer) -> str:
    state = optimizer.state_dict()["state"]
    return _digest(_local(state[place][name]) for place in sorted(state) for name in sorted(state[place]))


def _digest(tensors: Iterable[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()
