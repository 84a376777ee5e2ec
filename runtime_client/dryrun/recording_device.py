"""A device without memory or time whose streams and events only write a log.

torch lets a Python module stand in for one device type (`privateuseone`). FSDP2 asks that module for its streams
and events, so a recorder learns which stream every operation runs on and which event every stream waits for. A
process can register one such module, once: `register` is idempotent and holds until the process ends. Without an
active log the device records nothing.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import _create_fake_pg
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from planner.program.edges import Entry, Issued, Recorded, Waited

DEVICE_TYPE = "recorder"
"""Name of the device type: `torch.device("recorder")`."""
PROCESS_GROUP = "fake_recorder"
"""Process group backend that does nothing, for `cpu` and the recording device."""
_OWN_KERNELS = ("silu_backward", "mish_backward")
"""Operations that torch takes apart on devices without a kernel of their own for them; accelerators have one."""


@dataclass(slots=True)
class DeviceLog:
    """What the host issued, in order."""

    entries: list[Entry] = field(default_factory=list)


class Stream:
    """A queue; two streams are the same when their `number` is."""

    def __init__(self, device: object = None, priority: int = 0, **_: object) -> None:
        self.number = next(_numbers)

    def wait_event(self, event: "Event") -> None:
        """Order later operations of this stream after `event`."""
        _append(Waited(stream=self.number, event=event.number))

    def wait_stream(self, stream: "Stream") -> None:
        """Order later operations of this stream after all that `stream` has been given so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Mark the present end of this stream."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host's waits are no part of the log."""


class Event:
    """A point of a stream; recording it again moves it."""

    def __init__(self, *_: object, **__: object) -> None:
        self.number = next(_numbers)

    def record(self, stream: Stream | None = None) -> None:
        """Mark the present end of `stream` (the current one by default)."""
        self.number = next(_numbers)
        _append(Recorded(stream=(stream or current_stream()).number, event=self.number))

    def wait(self, stream: Stream | None = None) -> None:
        """Order later operations of `stream` after this event."""
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        """Everything is done at once here."""
        return True

    def synchronize(self) -> None:
        """The host's waits are no part of the log."""


_numbers = itertools.count()
_current: list[Stream] = [Stream()]
_logs: list[DeviceLog] = []


def _append(entry: Entry) -> None:
    if _logs:
        _logs[-1].entries.append(entry)


def current_stream(device: object = None) -> Stream:
    """The stream on which operations are issued now."""
    return _current[-1]


@contextmanager
def use_stream(stream: Stream | None) -> Iterator[None]:
    """Issue operations on `stream` inside the context, as `torch.cuda.stream` does."""
    _current.append(stream or current_stream())
    try:
        yield
    finally:
        _current.pop()


@contextmanager
def as_accelerator() -> Iterator[None]:
    """Let `torch.accelerator` name the current stream inside the context.

    Its own answer is a stream of torch's, which cannot wait for the events of a Python device.
    """
    original = torch.accelerator.current_stream
    torch.accelerator.current_stream = current_stream  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.accelerator.current_stream = original


def issue(operation: int) -> None:
    """Log that the operation of this number was issued on the current stream."""
    _append(Issued(stream=current_stream().number, operation=operation))


@contextmanager
def logging_to(log: DeviceLog) -> Iterator[None]:
    """Write all that streams and events do into `log` inside the context."""
    _logs.append(log)
    try:
        yield
    finally:
        _logs.pop()


def register() -> None:
    """Make `torch.device("recorder")` and its process group known; idempotent."""
    if not hasattr(torch, DEVICE_TYPE):
        _setup_privateuseone_for_python_backend(DEVICE_TYPE, backend_module=_device_module())
        for name in _OWN_KERNELS:
            _library.impl(name, _no_kernel, "PrivateUse1")  # type: ignore[no-untyped-call]
    if PROCESS_GROUP not in dist.Backend.backend_list:
        dist.Backend.register_backend(
            PROCESS_GROUP, _create_fake_pg, extended_api=True, devices=["cpu", DEVICE_TYPE]
        )


_library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


def _no_kernel(*args: object) -> None:
    raise AssertionError("the recording device holds fake tensors only")


def _device_module() -> ModuleType:
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "manual_seed_all": lambda seed: None,
        "_is_in_bad_fork": lambda: False,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "Stream": Stream,
        "Event": Event,
        "stream": use_stream,
        "current_stream": current_stream,
    }
    module = ModuleType(f"torch.{DEVICE_TYPE}")
    for name, answer in answers.items():
        setattr(module, name, answer)
    return module
