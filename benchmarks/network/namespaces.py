"""Ranks in network namespaces of their own, joined by a bridge, each behind a link of limited rate.

Needs root and the commands `ip` and `tc`. The rate is limited on the way out of each rank (tbf), so that a link
carries it in both directions at the same time, as an Ethernet port does; a delay (netem) is added where one is
asked for.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

INTERFACE = "rank0"
"""Name of the interface in every rank's namespace."""
_SUBNET = "10.77.0"
_SETTINGS = ("net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_wmem=4096 65536 262144")
"""The same congestion control wherever it runs, which every kernel lets a namespace choose: BBR drains its queue
for 200 ms every ten seconds, so that one step in several is a tenth longer. And short queues: behind megabytes
acknowledgements come so late that TCP sends things twice.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank runs."""

    namespace: str
    address: str

    def command(self, command: Sequence[str], *, core: int, nice: int = 0) -> list[str]:
        """The command in this namespace, bound to one core."""
        words = ["ip", "netns", "exec", self.namespace, "taskset", "-c", str(core)]
        return [*words, *(["nice", "-n", str(nice)] if nice else []), *command]


def why_not() -> str | None:
    """Why no namespaces can be made here; None where they can."""
    missing = [name for name in ("ip", "tc", "taskset") if shutil.which(name) is None]
    if missing:
        return f"network namespaces need the commands {', '.join(missing)} (packages iproute2, util-linux)"
    if os.geteuid() != 0:
        return "network namespaces and rate limits need root"
    name = f"swprobe{os.getpid()}"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if probe.returncode:
        return f"this machine makes no network namespaces: {probe.stderr.strip()}"
    _run("ip", "netns", "del", name)
    return None


@contextmanager
def places(num_ranks: int, *, megabits: int | None, delay_us: int = 0) -> Iterator[list[Place]]:
    """A namespace for each rank; all are deleted at the end.

    Args:
        num_ranks: how many.
        megabits: rate of each rank's link, per second and direction; None leaves it unlimited.
        delay_us: one way.
    """
    prefix = f"sw{os.getpid()}"
    names = [f"{prefix}r{rank}" for rank in range(num_ranks)]
    switch = f"{prefix}s"
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for rank, name in enumerate(names):
            _run("ip", "netns", "add", name)
            _connect(name, switch, rank)
            _limit(name, megabits, delay_us)
        yield [Place(namespace=name, address=f"{_SUBNET}.{rank + 1}") for rank, name in enumerate(names)]
    finally:
        for name in (*names, switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _connect(name: str, switch: str, rank: int) -> None:
    peer = f"port{rank}"
    _run("ip", "link", "add", INTERFACE, "netns", name, "type", "veth", "peer", "name", peer, "netns", switch)
    _run("ip", "-n", switch, "link", "set", peer, "master", "bridge", "up")
    _run("ip", "-n", name, "addr", "add", f"{_SUBNET}.{rank + 1}/24", "dev", INTERFACE)
    for interface in (INTERFACE, "lo"):
        _run("ip", "-n", name, "link", "set", interface, "up")
    for setting in _SETTINGS:
        _run("ip", "netns", "exec", name, "sysctl", "-qw", setting)


def _limit(name: str, megabits: int | None, delay_us: int) -> None:
    tc = ("tc", "-n", name, "qdisc", "add", "dev", INTERFACE)
    if megabits is not None:
        rate = f"{megabits}mbit"
        # A queue of a second drops nothing that a socket sends at once: ports that lose packets are another matter.
        _run(*tc, "root", "handle", "1:", "tbf", "rate", rate, "burst", "256kb", "latency", "1s")
    if delay_us:
        parent = ("parent", "1:1") if megabits is not None else ("root",)
        _run(*tc, *parent, "netem", "delay", f"{delay_us}us", "limit", "100000")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
