"""Give the shards of a planned model memory, where the plan has them."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from planner.schema import StateTier
from runtime_client.apply.applied import AppliedPlan
from runtime_client.apply.units import resolve_units
from runtime_client.fingerprint import unwrapped_name
from runtime_client.weights.errors import BuffersLost
from runtime_client.weights.on_meta import on_meta

Build = Callable[[], nn.Module]


def materialise(applied: AppliedPlan, *, build: Build | None = None, has_checkpoint: bool = True) -> None:
    """Allocate what is on the meta device: shards of offloaded units on the host, all else on the device.

    Parameters and persistent buffers then hold anything, until they are loaded or initialised. What is not on the
    meta device stays as it is. Units that a forward left gathered are resharded, so that nothing is written into
    gathered parameters, which are thrown away.

    Args:
        applied: A model that was built on the meta device and sharded by `apply_plan`.
        build: What built it. Needed only where it was built under `torch.device("meta")` and has buffers that are
            not persistent: they are taken from a model that is built again `on_meta()`.
        has_checkpoint: Persistent buffers get their values later; without one they are taken from `build` too.

    Raises:
        BuffersLost: there are such buffers, and no `build`; the model is then untouched.
    """
    lost = dict(_lost(applied.model, has_checkpoint=has_checkpoint))
    kept = _values(lost, build) if lost else {}
    for module in applied.model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    on_host = _on_host(applied)
    device = torch.device(applied.mesh.device_type)

    def allocate(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        return torch.empty_like(tensor, device="cpu" if id(tensor) in on_host else device)

    if any(tensor.is_meta for tensor in (*applied.model.parameters(), *applied.model.buffers())):
        applied.model._apply(allocate)  # type: ignore[no-untyped-call]
    for name, (module, attribute) in lost.items():
        value = kept[name].to(device)
        if attribute in module._buffers:
            module._buffers[attribute] = value
        else:
            setattr(module, attribute, value)


def _on_host(applied: AppliedPlan) -> set[int]:
    units = resolve_units(applied.model, applied.decisions)
    return {
        id(parameter)
        for unit in units
        if unit.plan.parameter_tier is not StateTier.DEVICE
        for _, parameter in unit.parameters
    }


def _lost(model: nn.Module, *, has_checkpoint: bool) -> Iterator[tuple[str, tuple[nn.Module, str]]]:
    """Tensors without values that no state dict will give: other buffers, and plain attributes."""
    for path, module in model.named_modules():
        persistent = set(module._buffers) - module._non_persistent_buffers_set if has_checkpoint else set()
        held = {**module._buffers, **vars(module)}
        for name, value in held.items():
            if name not in persistent and isinstance(value, Tensor) and value.is_meta:
                yield unwrapped_name(f"{path}.{name}" if path else name), (module, name)


def _values(lost: dict[str, tuple[nn.Module, str]], build: Build | None) -> dict[str, Tensor]:
    if build is None:
        raise BuffersLost(
            f"{', '.join(list(lost)[:3])}{', ..' if len(lost) > 3 else ''} ({len(lost)}): no checkpoint has these, "
            "and they were made on the meta device. Build the model under runtime_client.weights.on_meta() instead "
            "of torch.device('meta'), or hand over build=, the function that builds it."
        )
    with on_meta():
        fresh = build()
    found = {unwrapped_name(path): module for path, module in fresh.named_modules()}
    return {name: getattr(found[name.rpartition(".")[0]], attribute) for name, (_, attribute) in lost.items()}
