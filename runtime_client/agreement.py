"""One plan for all ranks: rank 0 gets it, the others receive it, and all of them hold the same.

[Note: why the store]
Plans travel through the store of the default process group, not through a collective: waiting for a key has a
deadline of its own, so that a job whose rank 0 died, or waits for a service that is away, ends with one message
instead of hanging until the process group gives up.
"""

import json
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from planner.schema import Plan, PlanBody
from runtime_client.errors import PlanDiffersBetweenRanks, PlanNotShared, ProcessGroupMissing, RefusedOnAnotherRank

_PREFIX = "shardwright/plan"
_KEY = "answer"
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


def check_same_plan(body: PlanBody, refusal: Exception | None = None) -> None:
    """All ranks must hold this plan, and none may refuse it: else some would hang in the first collective.

    One all-reduce of three integers; only where something is wrong, one exchange of names and reasons.

    Args:
        body: The plan of this rank.
        refusal: Why this rank cannot apply it.

    Raises:
        PlanDiffersBetweenRanks: on every rank, with who has what.
        RefusedOnAnotherRank: this rank has nothing against the plan, another one does and raises its `refusal`.
    """
    mine = body.content_hash()
    number = int(mine.removeprefix("sha256:")[:15], 16)
    device = reducing_device()
    extremes = torch.tensor([number, -number, refusal is not None], dtype=torch.int64, device=device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    most, least, is_refused = extremes.tolist()
    if most != -least:
        _tell_who_differs(mine)
    if is_refused:
        _tell_who_refuses(refusal)


def _tell_who_differs(mine: str) -> NoReturn:
    holders: dict[str, list[int]] = {}
    for rank, name in enumerate(_from_all(mine)):
        holders.setdefault(str(name), []).append(rank)
    shown = "; ".join(f"{name[:19]}... on {_ranks(ranks)}" for name, ranks in holders.items())
    raise PlanDiffersBetweenRanks(
        f"the ranks hold different plans: {shown}. Let rank 0 get the plan and hand it on "
        "(runtime_client.agreement.share_plan)."
    )


def _tell_who_refuses(refusal: Exception | None) -> NoReturn:
    reasons = _from_all(None if refusal is None else f"{type(refusal).__name__}: {refusal}")
    if refusal is not None:
        raise refusal
    refusing = [rank for rank, reason in enumerate(reasons) if reason is not None]
    raise RefusedOnAnotherRank(f"{_ranks(refusing)} cannot apply the plan: {reasons[refusing[0]]}")


def _from_all(mine: str | None) -> list[str | None]:
    found: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def _offered(get: Callable[[], Plan], store: Store) -> Plan:
    try:
        plan = get()
    except BaseException as error:
        _put(store, {"error": f"{type(error).__name__}: {error}"})
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
