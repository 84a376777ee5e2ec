"""Dry runs as jobs, so that each can have a process of its own."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from planner.program.outline import Outline
from planner.schema import Decisions, InvalidDocument, OptimizerGroup, ShardwrightError
from planner.schema.base import Part, Positive, Sha256
from runtime_client.apply.model_checks import check_fingerprint
from runtime_client.dryrun.memory import MemoryRecord, record_memory
from runtime_client.dryrun.program import record_program


class DryRunJob(Part):
    """What to build, how to shard it, and what to record."""

    record: Literal["memory", "program"] = "memory"
    build: Annotated[str, Field(pattern=r"^.+:[A-Za-z_][A-Za-z0-9_]*$")]
    """`package.module:function` or `path/to/file.py:function`; the function returns a training example."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""
    decisions: Decisions
    sequence: Positive
    optimizer_groups: Annotated[tuple[OptimizerGroup, ...], Field(min_length=1)] = (OptimizerGroup(),)
    model_fingerprint: Sha256 | None = None
    """Where given, the model must have it (that of the plan which the decisions are from)."""


class DryRunError(ShardwrightError):
    """The model or FSDP2 raised an error inside a dry run."""

    code = "dry_run_failed"


Record = MemoryRecord | Outline
_MEMORY = TypeAdapter(MemoryRecord)
_PROGRAM = TypeAdapter(Outline)


def run_job(job: DryRunJob) -> Record:
    """Run a job in this process, which must have no process group.

    Raises:
        InvalidDocument: `build` names nothing that can be called.
        FingerprintMismatch: what it builds is not the model of the plan.
    """
    function = _resolve(job.build)

    def build() -> Any:  # noqa: ANN401 - the user's type
        example = function(**job.arguments)
        if job.model_fingerprint is not None:
            check_fingerprint(example.model, job.model_fingerprint)
        return example

    if job.record == "program":
        return record_program(build, job.decisions, sequence=job.sequence)
    return record_memory(build, job.decisions, sequence=job.sequence, optimizer_groups=job.optimizer_groups)


def run_isolated(jobs: Sequence[DryRunJob]) -> list[Record]:
    """Run jobs one after another in one new process, `python -m runtime_client.dryrun`.

    Raises:
        DryRunError: a job failed; the message carries its error.
    """
    lines = "".join(job.model_dump_json() + "\n" for job in jobs)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    finished = subprocess.run(
        [sys.executable, "-m", "runtime_client.dryrun"],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    answers = [json.loads(line) for line in finished.stdout.splitlines()]
    if answers and "error" in answers[-1]:
        raise DryRunError(f"job {len(answers) - 1} ({jobs[len(answers) - 1].build}): {answers[-1]['error']}")
    if len(answers) != len(jobs):
        raise DryRunError(f"the dry run ended with status {finished.returncode}: {finished.stderr[-2000:]}")
    return [parse_record(job, answer["record"]) for job, answer in zip(jobs, answers, strict=True)]


def dump_record(record: Record) -> Any:  # noqa: ANN401 - JSON of any shape
    """A record as JSON values."""
    adapter = _MEMORY if isinstance(record, MemoryRecord) else _PROGRAM
    return adapter.dump_python(record, mode="json")  # type: ignore[arg-type]


def parse_record(job: DryRunJob, value: object) -> Record:
    """The record of a job from the JSON values of `dump_record`."""
    return _PROGRAM.validate_python(value) if job.record == "program" else _MEMORY.validate_python(value)


def _resolve(build: str) -> Callable[..., Any]:
    place, _, name = build.rpartition(":")
    try:
        module = _module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        function = getattr(module, name)
    except (ImportError, AttributeError, FileNotFoundError) as error:
        raise InvalidDocument(
            f"build {build!r} cannot be loaded ({error}); name it package.module:function or file.py:function"
        ) from None
    if not callable(function):
        raise InvalidDocument(f"build {build!r} is not a function")
    return function  # type: ignore[no-any-return]


def _module_of_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
