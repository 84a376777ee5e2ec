"""Run the real FSDP2 code at any world size on a CPU, and record what it allocates and issues.

Fake tensors and a fake process group stand in for devices and ranks, so a dry run costs seconds and no memory. It
needs a process without a process group: use `run_isolated`, or `python -m runtime_client.dryrun`.
"""

from runtime_client.dryrun.job import DryRunError, DryRunJob, run_isolated, run_job
from runtime_client.dryrun.memory import MemoryRecord, PhasePeak, record_memory
from runtime_client.dryrun.program import record_program

__all__ = [
    "DryRunError",
    "DryRunJob",
    "MemoryRecord",
    "PhasePeak",
    "record_memory",
    "record_program",
    "run_isolated",
    "run_job",
]
