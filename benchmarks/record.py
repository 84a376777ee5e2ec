"""Where and on what a measurement was made; goes into every result file."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import ceil
from pathlib import Path
from typing import Any


def provenance() -> dict[str, object]:
    """Commit, machine, date and versions."""
    return {
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "ortools": _version("ortools"),
        "torch": _version("torch"),
    }


def latency(seconds: Sequence[float]) -> dict[str, float | int | None]:
    """Number, median and 99th percentile (nearest rank) of durations, in milliseconds; None of none."""
    ordered = sorted(seconds)

    def at(share: float) -> float | None:
        return round(ordered[max(0, ceil(share * len(ordered)) - 1)] * 1e3, 1) if ordered else None

    return {"count": len(ordered), "p50_ms": at(0.5), "p99_ms": at(0.99)}


def done_before(output: Path, key: str) -> set[Any]:
    """Values of `key` in the lines of a results file that this commit wrote; a run that goes on leaves them out."""
    if not output.exists():
        return set()
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    return {line[key] for line in lines if line["commit"] == _commit()}


def _commit() -> str:
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return run.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
