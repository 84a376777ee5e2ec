"""Entry of a planner process: limits first, then the planner itself in the same process.

Run by path with an isolated interpreter and the arguments `memory_bytes parent_pid command...`. It stands apart
from the server because code between fork and exec of a process with threads may deadlock.
"""

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
"""`prctl(2)`: the signal this process gets when its parent dies. It survives exec."""


def main(arguments: list[str]) -> None:
    """Limit the address space, die with the parent, become the command."""
    memory_bytes, parent_pid = int(arguments[0]), int(arguments[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit("the server has gone")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.execv(arguments[2], arguments[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
