"""Units on their way through a step: to the host, updated there, and back, several at a time.

[Note: stages]
Each stage is one thread that takes units in the order in which they were handed over:

    fetch     borrow a staging buffer, copy shards and gradients to it
    load      get the state (on NVMe: borrow a buffer, read and verify)
    update    the optimizer's step, once fetch and load are done
    give back copy the updated shards to the device, return the staging buffer
    store     put the state back (on NVMe: write), return its buffer

So the copies of one unit run beside the update of another. Every stage sees the units in one order and buffers come
back in that order, so a stage that waits for a buffer waits for units before its own only: there is no deadlock.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runtime_client.offload.staging import Staging, views
from runtime_client.offload.store import StateStore
from runtime_client.offload.unit_step import Groups, Member, UnitStep

_STAGES = ("fetch", "load", "update", "give_back", "store")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A unit whose gradients are reduced."""

    index: int
    unit: UnitStep
    members: Sequence[Member]
    gradients: Sequence[Tensor]
    """Shards of the gradients, by member; held until they were copied."""
    groups: Groups
    ready: Any
    """Event of the device after which they may be read; None on a CPU."""


class Pipeline:
    """The threads and streams of one optimizer."""

    def __init__(self, store: StateStore, staging: Staging, device_type: str) -> None:
        self._store, self._staging = store, staging
        self._device = torch.get_device_module(device_type)
        self._to_host, self._to_device = self._device.Stream(), self._device.Stream()
        index = torch.accelerator.current_device_index() if device_type != "cpu" else None
        self._threads = {
            stage: ThreadPoolExecutor(1, f"shardwright-{stage}", _enter_thread, (index,)) for stage in _STAGES
        }
        self._returned: list[Future[None]] = []
        self._stored: list[Future[None]] = []

    def submit(self, job: Job) -> None:
        """Begin the step of a unit; returns at once."""
        run = self._run
        fetched = run("fetch", lambda: self._fetch(job))
        loaded = run("load", lambda: self._store.load(job.index))
        updated = run("update", lambda: self._update(job, fetched.result(), loaded.result()))
        self._returned.append(run("give_back", lambda: self._give_back(job, fetched, updated)))
        self._stored.append(run("store", lambda: self._put_back(job, loaded, updated)))

    def finish(self) -> None:
        """Wait until all updated shards are on the device; the state may still be on its way.

        Raises:
            Exception: the first that a stage ran into; the other units have ended all the same.
        """
        returned, self._returned = self._returned, []
        stored, self._stored = self._stored, []
        failed = [error for future in returned if (error := future.exception()) is not None]
        if failed:
            failed += [error for future in stored if (error := future.exception()) is not None]
            raise failed[0]
        self._stored = stored

    def after_stores(self, action: Callable[[], None]) -> Future[None]:
        """Run something once the state of all units so far is put back, unless that failed."""
        stored, self._stored = self._stored, []

        def act() -> None:
            for future in stored:
                future.result()
            action()

        return self._run("store", act)

    def close(self) -> None:
        """End the threads once they are through."""
        for thread in self._threads.values():
            thread.shutdown()

    def _run(self, stage: str, work: Callable[[], Any]) -> "Future[Any]":
        return self._threads[stage].submit(torch.no_grad()(work))

    def _fetch(self, job: Job) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        buffer = self._staging.borrow()
        try:
            staged = job.unit.stage(job.members, buffer)
            with self._device.stream(self._to_host):
                self._to_host.wait_event(job.ready)
                for member, gradient, (shard, place) in zip(job.members, job.gradients, staged, strict=True):
                    shard.copy_(member.local, non_blocking=True)
                    place.copy_(gradient, non_blocking=True)
                _wait(self._to_host.record_event())
        except BaseException:
            self._staging.give_back(buffer)
            raise
        return buffer, staged

    def _update(self, job: Job, fetched: tuple[Tensor, list[tuple[Tensor, Tensor]]], state: Tensor) -> None:
        unit = job.unit
        unit.update(job.members, fetched[1], views(state, unit.state_like), job.groups)

    def _give_back(self, job: Job, fetched: "Future[Any]", updated: "Future[None]") -> None:
        buffer, staged = fetched.result()
        try:
            updated.result()
            with self._device.stream(self._to_device):
                for member, (shard, _) in zip(job.members, staged, strict=True):
                    member.local.copy_(shard, non_blocking=True)
                _wait(self._to_device.record_event())
        finally:
            self._staging.give_back(buffer)

    def _put_back(self, job: Job, loaded: "Future[Tensor]", updated: "Future[None]") -> None:
        buffer = loaded.result()
        self._store.store(job.index, buffer, is_updated=updated.exception() is None)
        updated.result()


def _enter_thread(device_index: int | None) -> None:
    if device_index is not None:
        torch.accelerator.set_device_index(device_index)


def _wait(event: Any) -> None:  # noqa: ANN401 - an event of any device
    if event is not None:
        event.synchronize()
