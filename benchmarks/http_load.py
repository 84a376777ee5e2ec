"""The same request again and again over a few connections, by a client that costs little beside the server."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(kw_only=True)
class Load:
    """What came of it."""

    seconds: float = 0.0
    durations_s: list[float] = field(default_factory=list)
    """Of each answer, from the first byte sent to the last one read."""
    statuses: Counter[int] = field(default_factory=Counter)
    num_bytes: int = 0
    """Of the bodies of the answers."""


def encoded(method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None) -> bytes:
    """A request of HTTP/1.1 that keeps its connection open; `body` is sent as JSON."""
    text = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(text)}"]
    lines += ["Content-Type: application/json"] if text else []
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + text


def send(url: str, request: bytes, *, num_connections: int, longest_s: float, most: int) -> Load:
    """Send a request over so many connections at a time, for so long or so often, whichever ends first."""
    return asyncio.run(_send(url, request, num_connections, longest_s, most))


async def _send(url: str, request: bytes, num_connections: int, longest_s: float, most: int) -> Load:
    load, address = Load(), urlsplit(url)
    streams = [await asyncio.open_connection(address.hostname, address.port) for _ in range(num_connections)]
    started = time.perf_counter()
    numbers = iter(range(most))

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while time.perf_counter() - started < longest_s and next(numbers, None) is not None:
            sent = time.perf_counter()
            writer.write(request)
            status, num_bytes = await _answer(reader)
            load.durations_s.append(time.perf_counter() - sent)
            load.statuses[status] += 1
            load.num_bytes += num_bytes
        writer.close()

    await asyncio.gather(*(work(*stream) for stream in streams))
    load.seconds = time.perf_counter() - started
    return load


async def _answer(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Status, and bytes of the body."""
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    lengths = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")]
    num_bytes = lengths[0] if lengths else 0
    await reader.readexactly(num_bytes)
    return int(status.split()[1]), num_bytes
