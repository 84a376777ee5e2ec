"""Programs written by hand."""

from planner.program.choices import ALWAYS
from planner.program.events import (
    Allocate,
    Event,
    Free,
    HostWait,
    Link,
    Operation,
    OperationKind,
    Phase,
    Program,
    Stream,
    Touch,
    Wait,
)
from planner.schema import MemoryCategory

COMPUTE, COPY_IN, GATHER, REDUCE = Stream.COMPUTE, Stream.COPY_IN, Stream.GATHER, Stream.REDUCE


def program(*events: Event, launch_ns: int = 0) -> Program:
    return Program(events=events, launch_ns=launch_ns)


def operation(
    kind: OperationKind,
    duration_ns: int,
    *,
    stream: Stream = COMPUTE,
    owner: str = "u",
    launches: int = 1,
    link: Link | None = None,
    waits: tuple[int, ...] = (),
    host_waits: bool = False,
) -> Operation:
    return Operation(
        kind=kind,
        owner=owner,
        unit=0,
        phase=Phase.FORWARD,
        stream=stream,
        duration_ns=duration_ns,
        launches=launches,
        link=link,
        waits=waits,
        host_waits=host_waits,
        when=ALWAYS,
    )


def wait(stream: Stream, event: int) -> Wait:
    return Wait(stream=stream, operation=event)


def host_wait(event: int) -> HostWait:
    return HostWait(operation=event)


def allocate(name: str, size: int, category: str, *, stream: Stream = COMPUTE) -> Allocate:
    return Allocate(
        buffer=name,
        stream=stream,
        category=MemoryCategory(category),
        size_bytes=size,
        moment=f"making {name}",
    )


def free(name: str) -> Free:
    return Free(buffer=name)


def touch(moment: str = "moment", **parts: int) -> Touch:
    return Touch(parts=tuple((MemoryCategory(name), size) for name, size in parts.items()), moment=moment)
