"""The last good plan of each model and workload, on disk, for when the service is away."""

import hashlib
import json
import logging
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from planner.schema import InvalidDocument, Plan, PlanRequest

_log = logging.getLogger(__name__)


class CacheKey(Protocol):
    """What a cached plan is found by, and must agree with to be of use."""

    @property
    def text(self) -> str:
        """Names the key; no two keys have the same."""

    @property
    def words(self) -> str:
        """What is asked for, in an error."""

    def mismatch(self, plan: Plan) -> str | None:
        """Why a plan is not one for this key; None when it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanKey:
    """What a cached plan must agree with to be of use."""

    model_fingerprint: str
    workload_hash: str
    world_size: int

    @classmethod
    def of(cls, request: PlanRequest) -> "PlanKey":
        """The key of a request."""
        return cls(
            model_fingerprint=request.model.fingerprint,
            workload_hash=request.workload.content_hash(),
            world_size=request.cluster.num_devices,
        )

    @property
    def text(self) -> str:
        """Names the key."""
        return f"{self.model_fingerprint} {self.workload_hash} {self.world_size}"

    @property
    def words(self) -> str:
        """What is asked for."""
        return f"this model, workload and {self.world_size} ranks"

    def mismatch(self, plan: Plan) -> str | None:
        """Why a plan is not one for this key; None when it is.

        The workload is part of the file name only: a planner may record it in a normalised form.
        """
        return _mismatch(plan, self.model_fingerprint, self.world_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageKey:
    """The active plan of a lineage, for a module and a number of ranks where the caller knows them."""

    lineage: str
    model_fingerprint: str | None
    world_size: int | None

    @property
    def text(self) -> str:
        """Names the key."""
        return f"lineage {self.lineage} {self.model_fingerprint} {self.world_size}"

    @property
    def words(self) -> str:
        """What is asked for."""
        ranks = "" if self.world_size is None else f" and {self.world_size} ranks"
        return f"lineage {self.lineage}{ranks}"

    def mismatch(self, plan: Plan) -> str | None:
        """Why a plan is not one for this key; None when it is."""
        if plan.body.outcome != "feasible":
            return "it is infeasible"
        if plan.envelope.revision is None:
            return "it names no revision of a lineage"
        if not self.lineage.startswith("lin:") and plan.envelope.lineage != self.lineage:
            return f"it is of lineage {plan.envelope.lineage}, not {self.lineage}"
        return _mismatch(plan, self.model_fingerprint, self.world_size)


def _mismatch(plan: Plan, model_fingerprint: str | None, world_size: int | None) -> str | None:
    body = plan.body
    if model_fingerprint not in (None, body.model_fingerprint):
        return f"it is for model {body.model_fingerprint}, not {model_fingerprint}"
    if world_size not in (None, body.world_size):
        return f"it is for {body.world_size} ranks, not {world_size}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPlan:
    """A plan with its age."""

    plan: Plan
    age_s: float


class PlanCache:
    """One file per key, replaced atomically, so that ranks and jobs may share a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def store(self, key: CacheKey, plan: Plan) -> None:
        """Keep a plan; a directory that cannot be written costs a warning, not the job."""
        entry = json.dumps({"stored_at_s": time.time(), "plan": json.loads(plan.to_json())})
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            _replace(self.path_of(key), entry)
        except OSError as error:
            _log.warning("the plan was not cached in %s: %s", self.directory, error)

    def load(self, key: CacheKey) -> CachedPlan | None:
        """The plan of a key; a file that is damaged or holds another plan is ignored with a warning."""
        path = self.path_of(key)
        try:
            return _read(path, key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("cached plan %s is ignored: %s. Delete the file to silence this.", path, error)
            return None

    def path_of(self, key: CacheKey) -> Path:
        """File of a key."""
        return self.directory / f"{hashlib.sha256(key.text.encode()).hexdigest()}.json"


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/shardwright/plans`, or `~/.cache/shardwright/plans` where that is not an absolute path."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return base / "shardwright" / "plans"


def _read(path: Path, key: CacheKey) -> CachedPlan:
    entry = json.loads(path.read_bytes())
    if not isinstance(entry, dict) or not isinstance(entry.get("stored_at_s"), int | float):
        raise InvalidDocument("it is not a cache entry")
    plan = Plan.from_object(entry.get("plan"), source=path.name)
    if not plan.verify():
        raise InvalidDocument(f"its body is not that of plan {plan.envelope.plan_id}")
    if (why := key.mismatch(plan)) is not None:
        raise InvalidDocument(why)
    return CachedPlan(plan=plan, age_s=max(0.0, time.time() - entry["stored_at_s"]))


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".plan-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
