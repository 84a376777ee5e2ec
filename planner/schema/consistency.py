"""What the parts of a model description must agree on; a broken rule names its place and the remedy."""

from collections.abc import Iterable, Iterator, Mapping
from math import isclose
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.schema.model import CallKind, Liveness, ModelDescription, Parameter
    from planner.schema.polynomial import Polynomial


_OUTPUT_PATH = "(output)"
_LOSS_PATH = "(loss)"
_RELATIVE_TOLERANCE = 1e-9
_ABSOLUTE_TOLERANCE = 1e-6


def require_references(model: "ModelDescription") -> None:
    """Keys and call numbers exist, and the loss ends the calls.

    Raises:
        ValueError: they do not.
    """
    for index, module in enumerate(model.modules):
        if module.parameters not in model.parameter_sets:
            raise ValueError(f"modules[{index}].parameters: no parameter set {module.parameters!r}")
    for index, call in enumerate(model.calls):
        if call.kind not in model.kinds:
            raise ValueError(f"calls[{index}].kind: no kind {call.kind!r}")
        if call.path == _LOSS_PATH and index + 1 < len(model.calls):
            raise ValueError(f"calls[{index}].path: the loss must be the last call, once")
        if call.path == _OUTPUT_PATH and any(later.path != _LOSS_PATH for later in model.calls[index + 1 :]):
            raise ValueError(f"calls[{index}].path: nothing but the loss may follow the cast of the output")
    for index, tensor in enumerate(model.shared):
        if not tensor.first_call <= tensor.last_call < len(model.calls):
            raise ValueError(f"shared[{index}]: calls {tensor.first_call}..{tensor.last_call} do not exist")
        if tensor.held_until is not None and not tensor.first_call < tensor.held_until < len(model.calls):
            raise ValueError(
                f"shared[{index}].held_until: {tensor.held_until} is no call after the first, {tensor.first_call}; "
                "leave it out where nobody holds the tensor that long"
            )
    for index, held in enumerate(model.held_inputs):
        if not held.call < held.held_until < len(model.calls):
            raise ValueError(
                f"held_inputs[{index}]: {held.held_until} is no call after call {held.call}; leave it out where "
                "nobody holds the tensor that long"
            )


def require_sound_kinds(model: "ModelDescription") -> None:
    """Regions and gradients that moments count exist, and gradients belong to parameters.

    Raises:
        ValueError: they do not.
    """
    for name, kind in model.kinds.items():
        _require_sound_kind(name, kind)
    known = {name for name, _ in model.iter_parameters()}
    for index, call in enumerate(model.calls):
        prefix = "" if call.path in ("", _LOSS_PATH) else f"{call.path}."
        for place, name in enumerate(model.kinds[call.kind].gradient_order):
            if prefix + name not in known:
                raise ValueError(
                    f"kinds.{call.kind}.gradient_order[{place}]: calls[{index}] ({call.path!r}) has no parameter "
                    f"{name!r}; names are relative to the module of the call"
                )


def _require_sound_kind(name: str, kind: "CallKind") -> None:
    order = kind.gradient_order
    if len(set(order)) < len(order):
        raise ValueError(f"kinds.{name}.gradient_order lists a parameter twice; list it where its gradient is done")
    for policy, liveness in (("none", kind.none), ("full", kind.full)):
        if liveness is not None:
            _require_sound_liveness(f"kinds.{name}.{policy}", kind, liveness)
    _require_sound_selective(name, kind)


def _require_sound_selective(name: str, kind: "CallKind") -> None:
    seen: set[tuple[str, ...]] = set()
    for index, entry in enumerate(kind.selective):
        path = f"kinds.{name}.selective[{index}]"
        if kind.full is None:
            raise ValueError(f"{path}: the kind has no `full`, so it cannot be checkpointed; leave `selective` out")
        if list(entry.saved_ops) != sorted(set(entry.saved_ops)):
            raise ValueError(f"{path}.saved_ops: sort the operations and name each once")
        if entry.saved_ops in seen:
            raise ValueError(
                f"{path}.saved_ops: {', '.join(entry.saved_ops)} has an entry already; keep one of them"
            )
        seen.add(entry.saved_ops)
        if len(entry.recompute) != len(kind.regions):
            raise ValueError(
                f"{path}.recompute: {len(entry.recompute)} entries, but the kind has {len(kind.regions)} regions; "
                "give one for each"
            )
        _require_sound_liveness(f"{path}.liveness", kind, entry.liveness)


def _require_sound_liveness(path: str, kind: "CallKind", liveness: "Liveness") -> None:
    regions = {
        **{f"saved[{index}]": tensor.region for index, tensor in enumerate(liveness.saved)},
        **{f"forward[{index}]": moment.region for index, moment in enumerate(liveness.forward)},
        **{f"backward[{index}]": moment.region for index, moment in enumerate(liveness.backward)},
    }
    for place, region in regions.items():
        if region >= max(1, len(kind.regions)):
            raise ValueError(f"{path}.{place}.region: no region {region}; the kind has {len(kind.regions)}")
    num_gradients = len(kind.gradient_order)
    for index, moment in enumerate(liveness.backward):
        if moment.num_gradients > num_gradients:
            raise ValueError(
                f"{path}.backward[{index}].num_gradients: {moment.num_gradients}, but gradient_order names "
                f"{num_gradients}"
            )


def require_sound_parts(model: "ModelDescription") -> None:
    """Parts exist, end somewhere, and do and keep together what the call does and keeps.

    Raises:
        ValueError: they do not.
    """
    for name, kind in model.kinds.items():
        for index, part in enumerate(kind.parts):
            place = f"kinds.{name}.parts[{index}]"
            if part.kind not in model.kinds:
                raise ValueError(f"{place}.kind: no kind {part.kind!r}")
            if part.path in (_OUTPUT_PATH, _LOSS_PATH):
                what = part.path.strip("()")
                raise ValueError(f"{place}.path: the {what} is a call of the model, not a part of another call")
            if not part.path and model.kinds[part.kind].parts:
                raise ValueError(f"{place}.kind: the code of a call between its children has no parts of its own")
    for name in model.kinds:
        _require_end(name, model.kinds)
        _require_equal_parts(name, model.kinds)


def _require_end(name: str, kinds: "Mapping[str, CallKind]") -> None:
    reached: set[str] = set()
    following = [name]
    while following:
        for part in kinds[following.pop()].parts:
            if part.kind == name:
                raise ValueError(f"kinds.{name}.parts: the kind is a part of itself; parts must be smaller calls")
            if part.kind not in reached:
                reached.add(part.kind)
                following.append(part.kind)


def _require_equal_parts(name: str, kinds: "Mapping[str, CallKind]") -> None:
    kind = kinds[name]
    if not kind.parts:
        return
    parts = [kinds[part.kind] for part in kind.parts]
    gradients = [
        f"{part.path}.{gradient}" if part.path else gradient
        for part in kind.parts
        for gradient in kinds[part.kind].gradient_order
    ]
    if sorted(gradients) != sorted(kind.gradient_order):
        wrong = sorted(set(gradients) ^ set(kind.gradient_order)) or sorted(gradients)
        raise ValueError(
            f"kinds.{name}.parts: their gradients are not those of the kind ({', '.join(wrong)}); each must be in "
            "the gradient_order of one part, relative to its path"
        )
    whole = _totals(kind)
    for quantity, terms in _summed(map(_totals, parts)).items():
        for term, value in terms.items():
            expected = whole[quantity][term]
            if not isclose(value, expected, rel_tol=_RELATIVE_TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE):
                raise ValueError(
                    f"kinds.{name}.parts: together they have {value} in term {term!r} of {quantity}, the kind has "
                    f"{expected}; parts are the same call, so the sums must be equal"
                )


_Totals = dict[str, dict[str, int | float]]


def _totals(kind: "CallKind") -> _Totals:
    """Sums of what a kind keeps without checkpointing and of the work of its regions, by term."""
    return {quantity: _sum_terms(polynomials) for quantity, polynomials in _quantities(kind)} | {
        f"{step} kernels": {"one": sum(getattr(region, step).num_kernels for region in kind.regions)}
        for step in ("forward", "backward")
    }


def _quantities(kind: "CallKind") -> "Iterator[tuple[str, list[Polynomial]]]":
    yield "none.saved", [tensor.size_bytes for tensor in kind.none.saved]
    for step in ("forward", "backward"):
        works = [getattr(region, step) for region in kind.regions]
        yield f"{step} flops", [work.flops for work in works]
        yield f"{step} moved_bytes", [work.moved_bytes for work in works]


def _sum_terms(polynomials: "Iterable[Polynomial]") -> dict[str, int | float]:
    sums: dict[str, int | float] = dict.fromkeys(("one", "b", "s", "bs", "ss", "bss"), 0)
    for polynomial in polynomials:
        for term in sums:
            sums[term] += getattr(polynomial, term)
    return sums


def _summed(totals: Iterable[_Totals]) -> _Totals:
    result: _Totals = {}
    for entry in totals:
        for quantity, terms in entry.items():
            sums = result.setdefault(quantity, dict.fromkeys(terms, 0))
            for term, value in terms.items():
                sums[term] += value
    return result


def require_sound_ties(parameters: "Iterable[tuple[str, Parameter]]") -> None:
    """Full names are unique, and each tie leads to an earlier parameter of the same kind.

    Raises:
        ValueError: they do not.
    """
    all_names = {name for name, _ in parameters}
    seen: dict[str, Parameter] = {}
    for name, parameter in parameters:
        if name in seen:
            raise ValueError(f"parameter {name!r} is listed twice; every full name must be unique")
        seen[name] = parameter
        if parameter.tied_to is not None:
            _require_sound_tie(name, parameter, seen, all_names)


def _require_sound_tie(name: str, parameter: "Parameter", seen: "dict[str, Parameter]", names: set[str]) -> None:
    target = parameter.tied_to
    if target not in names:
        raise ValueError(f"parameter {name!r} is tied to {target!r}, which does not exist")
    first = seen.get(target)
    if first is None or target == name:
        raise ValueError(
            f"parameter {name!r} is tied to {target!r}, which is not registered before it; "
            "tie every copy to the first parameter"
        )
    if first.tied_to is not None:
        raise ValueError(
            f"parameter {name!r} is tied to {target!r}, which is itself tied to {first.tied_to!r}; "
            "tie every copy to the first parameter directly"
        )
    for field in ("shape", "dtype", "requires_grad"):
        if getattr(parameter, field) != getattr(first, field):
            raise ValueError(
                f"parameter {name!r} is tied to {target!r} but differs in {field} ({getattr(parameter, field)} and "
                f"{getattr(first, field)}); tied parameters are one tensor"
            )
