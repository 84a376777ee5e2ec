"""What the parts of a model description must agree on; a broken rule names its place and the remedy."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.schema.model import CallKind, Liveness, ModelDescription, Parameter


_LOSS_PATH = "(loss)"


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
    for index, tensor in enumerate(model.shared):
        if not tensor.first_call <= tensor.last_call < len(model.calls):
            raise ValueError(f"shared[{index}]: calls {tensor.first_call}..{tensor.last_call} do not exist")


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


def require_sound_ties(parameters: "list[tuple[str, Parameter]]") -> None:
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
