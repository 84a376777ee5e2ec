"""What two plans have in common and what not, in words and numbers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from planner.block_names import fold_families, fold_names, template
from planner.schema import ActivationPolicy, Decisions, MeshPlan, PlanBody, Predictions, UnitPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that differs."""

    path: str
    """JSON path of the field; blocks with equal changes are folded, e.g.
    `decisions.units[layers.0-30].reshard_after_forward`."""
    before: str
    """Value in words; empty when there was none."""
    after: str
    words: str
    """A sentence for people."""


def diff(a: PlanBody, b: PlanBody) -> tuple[Difference, ...]:
    """Differences from plan `a` to plan `b`: inputs, outcome, decisions, predictions, proof, in this order."""
    return (
        *_inputs(a, b),
        *_fields("", a, b, ("outcome", "world_size", "planner_version")),
        *_decisions(a.decisions, b.decisions),
        *_predictions(a.predictions, b.predictions),
        *_fields("certificate", a.certificate, b.certificate, ("status", "objective", "lower_bound")),
        *_fields("reasons", a.reasons, b.reasons, ("binds",)),
    )


def _inputs(a: PlanBody, b: PlanBody) -> Iterator[Difference]:
    if a.model_fingerprint != b.model_fingerprint:
        yield Difference(
            path="model_fingerprint",
            before=_short(a.model_fingerprint),
            after=_short(b.model_fingerprint),
            words="the model itself differs (names, shapes, dtypes or structure)",
        )
    for name in ("model", "cluster", "workload", "profile"):
        before, after = getattr(a.inputs, name), getattr(b.inputs, name)
        if before != after:
            yield Difference(
                path=f"inputs.{name}",
                before=_short(before),
                after=_short(after),
                words=f"the {name} document differs ({_short(before) or 'none'} to {_short(after) or 'none'})",
            )


def _decisions(a: Decisions | None, b: Decisions | None) -> Iterator[Difference]:
    if a is None or b is None:
        if a is not b:
            yield _changed("decisions", "none" if a is None else "present", "none" if b is None else "present")
        return
    yield from _fields("decisions.mesh", a.mesh, b.mesh, ("replicate", "shard"))
    yield from _fields("decisions", a, b, ("micro_batch", "num_micro_batches", "param_dtype", "reduce_dtype"))
    yield from _fields("decisions", a, b, ("output_dtype", "cast_forward_inputs", "optimizer_implementation"))
    yield from _fields("decisions.runtime", a.runtime, b.runtime, tuple(type(a.runtime).model_fields))
    yield from _units(a, b)
    yield from _activations(a, b)
    yield from _layouts(a, b)
    yield from _owners(a, b)


def _units(a: Decisions, b: Decisions) -> Iterator[Difference]:
    before = {unit.modules: unit for unit in a.units}
    after = {unit.modules: unit for unit in b.units}
    gone = [modules for modules in before if modules not in after]
    new = [modules for modules in after if modules not in before]
    if gone:
        units = _names(gone)
        yield Difference(path="decisions.units", before=units, after="", words=f"no longer units: {units}")
    if new:
        units = _names(new)
        yield Difference(path="decisions.units", before="", after=units, words=f"new units: {units}")
    both = [(unit, after[modules]) for modules, unit in before.items() if modules in after]
    for field in (name for name in UnitPlan.model_fields if name not in ("modules", "num_parameters")):
        changes = [(x.modules, *_unit_values(x, y, field)) for x, y in both]
        yield from _folded("decisions.units", field, changes)


def _activations(a: Decisions, b: Decisions) -> Iterator[Difference]:
    before = {plan.module: _policy(plan.policy, plan.saved_ops) for plan in a.activations}
    after = {plan.module: _policy(plan.policy, plan.saved_ops) for plan in b.activations}
    none = _policy(ActivationPolicy.NONE, ())
    changes = [
        ((module,), before.get(module, none), after.get(module, none))
        for module in dict.fromkeys([*before, *after])
    ]
    yield from _folded("decisions.activations", "activations", changes)


def _layouts(a: Decisions, b: Decisions) -> Iterator[Difference]:
    before = {layout.name: layout for layout in a.layouts}
    after = {layout.name: layout for layout in b.layouts}
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        what = "new" if old is None else "gone" if new is None else "other places or another shard size"
        yield Difference(
            path=f"decisions.layouts[{name}]",
            before="" if old is None else f"{old.shard_elements} elements per shard",
            after="" if new is None else f"{new.shard_elements} elements per shard",
            words=f"layout {name}: {what}",
        )


def _owners(a: Decisions, b: Decisions) -> Iterator[Difference]:
    before, after = ({entry.parameter: entry.rank for entry in one.owners} for one in (a, b))
    moved = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    if moved:
        yield Difference(
            path="decisions.owners",
            before=f"{len(before)} matrices",
            after=f"{len(after)} matrices",
            words=f"other owners of {fold_names(moved)}",
        )


def _predictions(a: Predictions | None, b: Predictions | None) -> Iterator[Difference]:
    if a is None or b is None:
        return
    yield from _fields("predictions", a, b, ("step_time_ns", "tokens_per_s", "host_bytes", "nvme_bytes"))
    yield from _fields("predictions", a, b, ("num_all_gathers", "num_reduce_scatters", "num_all_reduces"))
    yield from _fields("predictions.breakdown", a.breakdown, b.breakdown, tuple(type(a.breakdown).model_fields))
    yield from _fields("predictions.peak", a.peak, b.peak, ("reserved_bytes", "allocated_bytes", "moment"))
    yield from _fields("predictions.budget", a.budget, b.budget, ("device_bytes", "budget_bytes"))


def _folded(path: str, field: str, changes: Iterable[tuple[tuple[str, ...], str, str]]) -> Iterator[Difference]:
    grouped: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for name, before, after in changes:
        if before != after:
            grouped.setdefault((before, after), []).append(name)
    for (before, after), names in grouped.items():
        units = _names(names)
        yield Difference(
            path=f"{path}[{units}].{field}",
            before=before,
            after=after,
            words=f"{units}: {_label(field)} {before or 'none'} -> {after or 'none'}",
        )


def _fields(path: str, a: BaseModel | None, b: BaseModel | None, names: tuple[str, ...]) -> Iterator[Difference]:
    if a is None or b is None:
        if a is not b:
            yield _changed(path, "none" if a is None else "present", "none" if b is None else "present")
        return
    for name in names:
        before, after = getattr(a, name), getattr(b, name)
        if before != after:
            yield _changed(f"{path}.{name}" if path else name, _measure(name, before), _measure(name, after))


def _changed(path: str, before: str, after: str) -> Difference:
    label = _label(path.removeprefix("decisions.").removeprefix("predictions."))
    return Difference(path=path, before=before, after=after, words=f"{label}: {before} -> {after}")


def _unit_values(a: UnitPlan, b: UnitPlan, field: str) -> tuple[str, str]:
    before, after = getattr(a, field), getattr(b, field)
    if field == "layouts":
        return ", ".join(before) or "even", ", ".join(after) or "even"
    if field == "mesh":
        return _mesh(before), _mesh(after)
    if field not in ("forward_prefetch", "backward_prefetch"):
        return _value(before, none="default"), _value(after, none="default")
    if len(before) == len(after):
        return fold_names(before), fold_names(after)
    return _depth(before), _depth(after)


def _mesh(mesh: MeshPlan | None) -> str:
    return f"{mesh.replicate} x {mesh.shard}" if mesh else "that of the plan"


def _depth(targets: tuple[str, ...]) -> str:
    return f"{len(targets)} ahead" if targets else "implicit"


def _policy(policy: ActivationPolicy, saved_ops: tuple[str, ...]) -> str:
    word = {ActivationPolicy.NONE: "keep", ActivationPolicy.FULL: "checkpoint"}.get(policy, str(policy))
    return f"{word} ({', '.join(saved_ops)})" if saved_ops else word


def _names(units: Iterable[tuple[str, ...]]) -> str:
    """Units with block numbers joined, those of several modules too."""
    families: dict[tuple[str, ...], list[str]] = {}
    for modules in units:
        families.setdefault(tuple(map(template, modules)), []).extend(modules)
    return ", ".join(
        " + ".join(fold_families(modules)) + (f" ({len(kinds)} per unit)" if len(set(kinds)) < len(kinds) else "")
        for kinds, modules in families.items()
    )


def _measure(name: str, value: object) -> str:
    if isinstance(value, int) and name.endswith("_ns"):
        return f"{value / 1e6:.2f} ms"
    if isinstance(value, int) and name.endswith("_bytes"):
        return f"{value / 1024**3:.2f} GiB"
    return _value(value)


def _value(value: object, *, none: str = "none") -> str:
    match value:
        case None:
            return none
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case _:
            return str(value)


def _label(path: str) -> str:
    return path.removesuffix("_ns").removesuffix("_bytes").replace("_", " ").replace(".", " ")


def _short(digest: str | None) -> str:
    return "" if digest is None else digest.removeprefix("sha256:")[:12]
