"""Which part of a call keeps which storage.

[Note: storages that several parts keep] Inside one call a storage that several of its parts save, or would hold as
an argument if they were checkpointed, is kept by the first of them, whatever their policies: it is in `saved` of
that part under every one. One that only checkpointed parts keep is in `full` of each: exact for one such part,
counted more than once for several. A storage that other calls keep too stays a `SharedTensor` of the calls; where
the first of these is split, its first part is the one that counts it, and moments of later parts leave it out once
it exists.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.schema.model import CallRole, KeptBy
from runtime_client.describe.nesting import Nesting
from runtime_client.describe.point import Held, Ledger, PointTrace
from runtime_client.describe.run import RunTrace
from runtime_client.describe.storages import Label, Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Who keeps what at one depth.

    Attributes:
        paths: of all calls.
        owners: call that counts a storage; where none is named, the first one that saves it does.
        shared: storages that are a `SharedTensor`, and the policies under which that counts.
        held_until: of these, the ones that callers hold, and the last call in whose forward they do.
    """

    paths: tuple[str, ...]
    owners: Mapping[Label, int]
    shared: Mapping[Label, KeptBy]
    held_until: Mapping[Label, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLedgers:
    """Ledgers of a run without and one with checkpointing of every part.

    Attributes:
        plain, full: the ledgers.
        ownership: of the parts, for splitting them again.
        present: for each call, whether it does or keeps anything.
    """

    plain: Ledger
    full: Ledger | None
    ownership: Ownership
    present: tuple[bool, ...]


def whole_calls(base: PointTrace) -> Ownership:
    """Who keeps what before anything is split."""
    return Ownership(
        paths=tuple(call.path for call in base.calls),
        owners={label: tensor.first_call for label, tensor in base.shared.items()},
        shared={label: tensor.kept_by for label, tensor in base.shared.items()},
        held_until={
            label: tensor.held_until for label, tensor in base.shared.items() if tensor.held_until is not None
        },
    )


def part_ledgers(whole: Ownership, nesting: Nesting, plain: RunTrace, full: RunTrace | None) -> PartLedgers:
    """Divide what calls keep among their parts: together these keep the same, at the same moments."""
    runs = [plain] if full is None else [plain, full]
    saving = {call for storage in plain.kept for call in storage.savers}
    present = tuple(call.has_work or call.index in saving for call in plain.calls)
    labels = {storage.label for run in runs for storage in (*run.kept, *run.let_go)}
    lifted = {label: nesting.lifted(label) for label in labels}
    ownership = Ownership(
        paths=tuple(call.path for call in plain.calls),
        owners=dict(_owners(whole, nesting, runs, present)),
        shared={label: whole.shared[outer] for label, outer in lifted.items() if outer in whole.shared},
        held_until={
            label: nesting.inner[whole.held_until[outer]].stop - 1
            for label, outer in lifted.items()
            if outer in whole.held_until
        },
    )
    own = _own(plain, ownership)
    full_ledger = None if full is None else _ledger(full, _declared(full, own, ownership), ownership, KeptBy.FULL)
    return PartLedgers(
        plain=_ledger(plain, own, ownership, KeptBy.NONE), full=full_ledger, ownership=ownership, present=present
    )


def _owners(
    whole: Ownership, nesting: Nesting, runs: Sequence[RunTrace], present: Sequence[bool]
) -> Iterator[tuple[Label, int]]:
    in_plain = {storage.label: min(storage.savers) for storage in runs[0].kept}
    for label, savers in _savers(runs).items():
        lifted = nesting.lifted(label)
        if lifted in whole.shared:
            yield label, _first(nesting, whole.owners[lifted], present)
        elif label in in_plain:
            home = whole.owners.get(lifted, nesting.outer[in_plain[label]])
            inside = [call for call in savers if call in nesting.inner[home]]
            yield label, min(inside, default=_first(nesting, home, present))


def _savers(runs: Sequence[RunTrace]) -> dict[Label, set[int]]:
    """All calls that keep a storage in any of the runs, or none where callers alone hold it."""
    savers: dict[Label, set[int]] = {storage.label: set() for run in runs for storage in run.let_go}
    for run in runs:
        for storage in run.kept:
            savers.setdefault(storage.label, set()).update(storage.savers)
    return savers


def _first(nesting: Nesting, outer: int, present: Sequence[bool]) -> int:
    """The first part of a call; the call before it, where the run skipped it."""
    inner = nesting.inner[outer]
    return next((call for call in inner if present[call]), inner.start - 1)


def _own(run: RunTrace, ownership: Ownership) -> list[list[Storage]]:
    own: list[list[Storage]] = [[] for _ in run.calls]
    for storage in run.kept:
        if storage.label in ownership.shared:
            continue
        owner = ownership.owners.get(storage.label)
        for call in sorted(storage.savers) if owner is None else (owner,):
            own[call].append(storage)
    return own


def _declared(full: RunTrace, plain_own: list[list[Storage]], ownership: Ownership) -> list[list[Storage]]:
    """Calls that are no modules are described by the plain run alone, so it says what they keep."""
    own = _own(full, ownership)
    return [own[call.index] if call.role is CallRole.BLOCK else plain_own[call.index] for call in full.calls]


def _ledger(run: RunTrace, own: list[list[Storage]], ownership: Ownership, policy: KeptBy) -> Ledger:
    """A call's `kept_before` has each storage once, as soon as it exists, and none that the call itself keeps."""
    since: dict[Label, int] = {}
    added = [0] * (len(run.calls) + 1)
    for storage, owner in _counted(run, own, ownership, policy):
        if storage.label not in since:
            since[storage.label] = max(owner, storage.label[0])
            added[since[storage.label] + 1] += storage.size_bytes
    kept_before, total = [], 0
    for call, storages in enumerate(own):
        total += added[call]
        kept_before.append(total - sum(s.size_bytes for s in storages if since[s.label] < call))
    return Ledger(own=own, kept_before=kept_before, held=tuple(_held(run, ownership)))


def _held(run: RunTrace, ownership: Ownership) -> Iterator[Held]:
    for storage in run.let_go:
        if storage.label in ownership.held_until:
            yield Held(
                first_call=max(ownership.owners[storage.label], storage.label[0]),
                last_call=ownership.held_until[storage.label],
                size_bytes=storage.size_bytes,
            )


def _counted(
    run: RunTrace, own: list[list[Storage]], ownership: Ownership, policy: KeptBy
) -> Iterator[tuple[Storage, int]]:
    for call, storages in enumerate(own):
        for storage in storages:
            yield storage, call
    for storage in run.kept:
        if ownership.shared.get(storage.label) in (KeptBy.BOTH, policy):
            yield storage, ownership.owners[storage.label]
