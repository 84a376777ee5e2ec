"""What was measured: device, driver, torch, host and day."""

import platform
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import torch

from planner.schema import Provenance


def provenance_of(device: torch.device) -> Provenance:
    """Of this process."""
    on_cpu = device.type == "cpu"
    return Provenance(
        device=_processor() if on_cpu else torch.cuda.get_device_name(device),
        driver=f"{platform.system()} {platform.release()}" if on_cpu else _driver(),
        torch_version=torch.__version__,
        date=datetime.now(UTC).date().isoformat(),
        host=socket.gethostname()[:200],
    )


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return f"{value.strip()}, {torch.get_num_threads()} threads"
    return platform.processor() or platform.machine()


def _driver() -> str:
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0][:200]
    return f"CUDA {torch.version.cuda}"
