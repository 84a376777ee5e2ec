"""One plan for all ranks: rank 0 gets it, the others receive it, and all of them hold the same.

[Note: why the store]
Plans, and what ranks have against them, travel through the store of the default process group, not through a
collective: waiting for a key has a deadline of its own. So a job that lost a rank, or waits for a service that is
away, ends with one message instead of hanging until the process group gives up.
"""

import json
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from planner.schema import Plan, PlanBody
from runtime_client.errors import (
    PlanDiffersBetweenRanks,
    PlanNotShared,
    ProcessGroupMissing,
    RanksMissing,
    RefusedOnAnotherRank,
)

_PREFIX = "shardwright/plan"
_KEY = "answer"
_GOODBYE = timedelta(seconds=5)
AGREEMENT_DEADLINE_S = 600.0
"""Ranks build models and load weights before they come together, some for minutes."""
_calls = 0


def share_plan(get: Callable[[], Plan], *, deadline_s: float = 120.0) -> Plan:
    """The plan that `get` returns on rank 0, on every rank. Call it on all ranks, after `init_process_group`.

    Args:
        get: Called on rank 0 alone: `lambda: client.plan(request).plan` or `lambda: load_plan(path)`.
        deadline_s: Seconds that the other ranks wait for rank 0, from their own call on. Give more than `get` may
            take (`PlanClient.deadline_s`) and than ranks start apart.

    Raises:
        ProcessGroupMissing: torch.distributed is not initialised.
        PlanNotShared: rank 0 had no plan (with its reason), died, or did not answer in time.
        ShardwrightError: on rank 0, whatever `get` raised.
    """
    _require_process_group()
    store = PrefixStore(f"{_PREFIX}/{_next_call()}", _get_default_store())
    if dist.get_rank() == 0:
        return _offered(get, store)
    answer = _awaited(store, deadline_s)
    if "error" in answer:
        raise PlanNotShared(f"rank 0 has no plan: {answer['error']}")
    return Plan.from_json(answer["plan"], source="rank 0")


def check_same_plan(
    body: PlanBody, refusal: Exception | None = None, *, deadline_s: float = AGREEMENT_DEADLINE_S
) -> None:
    """All ranks must come, hold this plan, and have nothing against it: else some would hang in a collective.

    Four short messages to the store for each rank; only where something is wrong, the reasons of all.

    Args:
        body: The plan of this rank.
        refusal: Why this rank cannot apply it.
        deadline_s: Seconds that the ranks wait for each other.

    Raises:
        PlanDiffersBetweenRanks: on every rank, with who has what.
        RefusedOnAnotherRank: this rank has nothing against the plan, another one does and raises its `refusal`.
        RanksMissing: some rank died, or did not come in time.
    """
    if dist.get_backend() == "fake":  # talks to nobody
        if refusal is not None:
            raise refusal
        return
    reason = None if refusal is None else f"{type(refusal).__name__}: {refusal}"
    meeting = _Meeting(PrefixStore(f"{_PREFIX}/{_next_call()}", _get_default_store()))
    answers = meeting.hold(body.content_hash(), reason, deadline_s)
    if not answers:
        return
    _check_hashes([answer["plan"] for answer in answers])
    if refusal is not None:
        raise refusal
    reasons = {rank: answer["reason"] for rank, answer in enumerate(answers) if answer["reason"] is not None}
    raise RefusedOnAnotherRank(f"{_ranks(list(reasons))} cannot apply the plan: {next(iter(reasons.values()))}")


def _check_hashes(hashes: list[str]) -> None:
    holders: dict[str, list[int]] = {}
    for rank, name in enumerate(hashes):
        holders.setdefault(name, []).append(rank)
    if len(holders) > 1:
        shown = "; ".join(f"{name[:19]}... on {_ranks(ranks)}" for name, ranks in holders.items())
        raise PlanDiffersBetweenRanks(
            f"the ranks hold different plans: {shown}. Let rank 0 get the plan and hand it on "
            "(runtime_client.agreement.share_plan)."
        )


@dataclass(frozen=True, slots=True)
class _Meeting:
    """All ranks come, each with what it has to say; what they said is read only where something is wrong."""

    store: Store

    def hold(self, plan: str, reason: str | None, deadline_s: float) -> list[dict[str, Any]]:
        """What every rank said, by rank; nothing where all agree.

        Raises:
            RanksMissing: not all came in time, or the store went away with the rank that has it.
        """
        start = time.monotonic()
        try:
            self._come(plan, reason)
            self.store.wait(["all"], timedelta(seconds=deadline_s))
            if self.store.add("odd", 0) == 0:
                return []
            answers = [json.loads(self.store.get(f"rank/{rank}")) for rank in range(dist.get_world_size())]
            _leave(self.store)
        except RuntimeError as error:
            raise RanksMissing(self._who_is_missing(time.monotonic() - start, error)) from None
        return answers

    def _come(self, plan: str, reason: str | None) -> None:
        first = self.store.compare_set("plan", "", plan).decode()
        if first != plan or reason is not None:
            self.store.add("odd", 1)
        self.store.set(f"rank/{dist.get_rank()}", json.dumps({"plan": plan, "reason": reason}))
        if self.store.add("arrived", 1) == dist.get_world_size():
            self.store.set("all", "1")

    def _who_is_missing(self, waited_s: float, error: RuntimeError) -> str:
        why = str(error).splitlines()[0]
        try:
            missing = [r for r in range(dist.get_world_size()) if not self.store.check([f"rank/{r}"])]
        except RuntimeError:
            return f"rank 0 went away after {waited_s:.0f} s, before all ranks had agreed on the plan ({why})."
        return (
            f"{_ranks(missing)} did not come to apply the plan within {waited_s:.0f} s ({why}). Look at the log of "
            "the first of them; where it only takes long to build its model, give apply_plan more deadline_s."
        )


def _leave(store: Store) -> None:
    """Every rank has read what it needs; rank 0, which may have the store, waits for that before it goes."""
    if store.add("left", 1) == dist.get_world_size():
        store.set("empty", "1")
    if dist.get_rank() == 0:
        with suppress(RuntimeError):
            store.wait(["empty"], _GOODBYE)


def _offered(get: Callable[[], Plan], store: Store) -> Plan:
    try:
        plan = get()
    except BaseException as error:
        _put(store, {"error": f"{type(error).__name__}: {error}"})
        _leave(store)
        raise
    _put(store, {"plan": plan.to_json()})
    return plan


def _put(store: Store, answer: dict[str, str]) -> None:
    store.set(_KEY, zlib.compress(json.dumps(answer).encode(), 1))  # type: ignore[arg-type]  # takes bytes, too


def _awaited(store: Store, deadline_s: float) -> dict[str, str]:
    start = time.monotonic()
    try:
        store.wait([_KEY], timedelta(seconds=deadline_s))
        answer = json.loads(zlib.decompress(store.get(_KEY)))
        if "error" in answer:
            _leave(store)
    except RuntimeError as error:  # torch's DistStoreError and DistNetworkError are RuntimeErrors
        waited = time.monotonic() - start
        raise PlanNotShared(
            f"rank 0 gave no plan within {waited:.0f} s ({str(error).splitlines()[0]}). Look at its log; where it "
            f"only takes long, raise deadline_s (now {deadline_s:g})."
        ) from None
    assert isinstance(answer, dict)
    return answer


def _next_call() -> int:
    """Ranks call in the same order, so that the same number means the same call."""
    global _calls
    _calls += 1
    return _calls


def has_process_group() -> bool:
    """Whether this process can speak to other ranks."""
    return dist.is_available() and dist.is_initialized()


def _require_process_group() -> None:
    if not has_process_group():
        raise ProcessGroupMissing(
            "ranks share plans once torch.distributed is initialised. Start the script with torchrun and call "
            "torch.distributed.init_process_group first."
        )


def reducing_device() -> torch.device:
    """Where the default process group can reduce."""
    backend = dist.get_backend()
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or "gloo" in backend or backend in ("mpi", "fake"):
        return torch.device("cpu")
    return accelerator


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:4]))
    return f"rank{'s' * (len(ranks) > 1)} {shown}{f' and {len(ranks) - 4} more' if len(ranks) > 4 else ''}"
