"""In which order a device sees aliased buffers read, freed and gathered; JSON; a process of its own (fake tensors).

Prints, for each gather in place of the first two steps, the step, the buffer, whether it ran in backward, and the
buffers (with the number of the use) that had been released, freed, and waited for by the gathering stream.
"""

import json
from typing import Any

import torch
from torch.distributed.fsdp._fully_shard._fsdp_common import is_bw

from planner.program.edges import Issued, Recorded
from planner.schema import OptimizerGroup
from runtime_client.dryrun import recording_device, rehearsal
from runtime_client.ragged.gather import AliasedAllGather, GatheredMemory
from tests.runtime_client.dryrun.conftest import make_decisions
from tests.runtime_client.dryrun.llama import Example, example
from tests.runtime_client.ragged.layouts import rows, with_layouts


def build() -> Example:
    return example(num_blocks=4, width=64, heads=2, hidden=96, vocabulary=128)


class Watch:
    """Marks uses of buffers in the device's log, as operations with numbers."""

    def __init__(self) -> None:
        self.released: dict[str, int] = {}
        self.freed: dict[int, str] = {}
        self.gathers: dict[int, dict[str, Any]] = {}
        self.names: dict[int, str] = {}
        self.count = 0
        self.step = 0

    def mark(self, name: str) -> int:
        self.count += 1
        self.names[self.count] = name
        recording_device.issue(self.count)
        return self.count

    def install(self) -> None:
        release, allocate = GatheredMemory.release, AliasedAllGather.allocate

        def watched_release(memory: GatheredMemory, gather: AliasedAllGather) -> None:
            self.released[gather.buffer.name] = self.mark(f"release {gather.buffer.name}")
            release(memory, gather)

        def watched_allocate(gather: AliasedAllGather, *args: Any, **kwargs: Any) -> torch.Tensor:
            self._watch_free(gather)
            made = allocate(gather, *args, **kwargs)
            if type(made) is not torch.Tensor:
                waiting = sorted(set(self.released.values()) - set(self.freed))
                number = self.mark(f"gather {gather.buffer.name}")
                self.gathers[number] = {
                    "step": self.step,
                    "buffer": gather.buffer.name,
                    "backward": is_bw(),
                    "freed": sorted(self.freed),
                    "released": waiting,
                }
            return made

        GatheredMemory.release = watched_release
        AliasedAllGather.allocate = watched_allocate

    def _watch_free(self, gather: AliasedAllGather) -> None:
        if getattr(gather.free, "watched", False):
            return
        free = gather.free

        def watched() -> None:
            self.freed[self.released[gather.buffer.name]] = gather.buffer.name
            free()

        watched.watched = True
        gather.free = watched


def waited(log: recording_device.DeviceLog) -> dict[int, set[int]]:
    """For each operation, those that the device has surely finished before."""
    done: dict[int, set[int]] = {}
    events: dict[int, set[int]] = {}
    found: dict[int, set[int]] = {}
    for entry in log.entries:
        known = done.setdefault(entry.stream, set())
        if isinstance(entry, Issued):
            found[entry.operation] = set(known)
            known.add(entry.operation)
        elif isinstance(entry, Recorded):
            events[entry.event] = set(known)
        else:
            known |= events[entry.event]
    return found


def main() -> None:
    even = make_decisions(4)
    with torch.device("meta"):
        made = with_layouts(build().model, even, atom=rows, alias=True)
    watch = Watch()
    with rehearsal.rehearse(build, made, sequence=16, optimizer_groups=(OptimizerGroup(),)) as run:
        watch.install()
        log = recording_device.DeviceLog()
        with recording_device.logging_to(log):
            for watch.step in range(2):
                run.micro_batch(0)
                run.optimizer_step()
    before = waited(log)
    for number, gather in watch.gathers.items():
        done = before[number]
        print(
            json.dumps(
                {
                    **gather,
                    "freed and not waited for": [watch.names[n] for n in gather["freed"] if n not in done],
                    "pending and waited for": [watch.names[n] for n in gather["released"] if n in done],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
