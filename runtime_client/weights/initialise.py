"""Initialise a sharded model from scratch, with the values of an unsharded one."""

from collections.abc import Callable, Iterator

import torch
from torch import nn

from runtime_client.apply.applied import AppliedPlan
from runtime_client.fingerprint import unwrapped_name
from runtime_client.weights.errors import NoInitialiser
from runtime_client.weights.matching import write
from runtime_client.weights.materialise import Build, materialise

Initialise = Callable[[nn.Module], object]


def initialise(
    applied: AppliedPlan,
    *,
    seed: int,
    init: Initialise | None = None,
    build: Build | None = None,
    draw_on: str = "cpu",
) -> None:
    """Give parameters the values that `torch.manual_seed(seed); model.apply(init)` gives the unsharded model.

    Equal to the last bit where the values are drawn on the same kind of device. Each module gets its own parameters
    whole for as long as `init` takes, one module after another, so that a rank never holds more than the largest of
    them; every rank draws all values. Filling the shards directly would not do: on a CPU every rank would draw the
    same ones (torch 2.13).

    Args:
        applied: The sharded model; what is on the meta device is allocated first.
        seed: The same on every rank. The generators of the process are left as they were.
        init: Initialises the parameters of one module, not those of its children; by default its
            `reset_parameters`. For models of transformers it is `model._init_weights`.
        build: As `materialise` takes it.
        draw_on: Device on which values are drawn.

    Raises:
        NoInitialiser: there is no `init`, and a module with parameters has no `reset_parameters`; or what there is
            leaves values of a parameter as they were, as of one that is made from data. Those before it are filled.
        BuffersLost: see `materialise`.
    """
    if init is None:
        _check_initialisers(applied.model)
    materialise(applied, build=build, has_checkpoint=False)
    device = torch.device(draw_on)
    indices = [] if device.type == "cpu" else [torch.accelerator.current_device_index()]
    kind = "cuda" if device.type == "cpu" else device.type  # without indices only the CPU's generator is kept
    with torch.random.fork_rng(indices, device_type=kind), torch.no_grad():
        torch.manual_seed(seed)
        for path, module in _bottom_up(applied.model):
            _fill(path, module, init or _reset, device)


def _bottom_up(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """In the order of `nn.Module.apply`."""
    for name, child in model.named_children():
        yield from _bottom_up(child, f"{path}.{name}" if path else name)
    yield path, model


def _check_initialisers(model: nn.Module) -> None:
    lacking = {
        type(module).__name__: path
        for path, module in model.named_modules()
        if any(parameter is not None for parameter in module._parameters.values())
        and not callable(getattr(module, "reset_parameters", None))
    }
    if lacking:
        shown = ", ".join(f"{name} ({path or 'the root'})" for name, path in lacking.items())
        raise NoInitialiser(
            f"{shown}: no reset_parameters. Hand over init=, a function that initialises the parameters of one "
            "module; for models of transformers it is model._init_weights."
        )


def _reset(module: nn.Module) -> None:
    if callable(reset := getattr(module, "reset_parameters", None)):
        reset()


def _fill(path: str, module: nn.Module, init: Initialise, device: torch.device) -> None:
    shards = {name: parameter for name, parameter in module._parameters.items() if parameter is not None}
    for name, shard in shards.items():
        whole = torch.empty(shard.shape, dtype=shard.dtype, device=device)
        if whole.is_floating_point():
            whole.fill_(torch.nan)
        module._parameters[name] = nn.Parameter(whole, requires_grad=shard.requires_grad)
    try:
        init(module)
        wholes = {name: module.get_parameter(name) for name in shards}
    finally:
        module._parameters.update(shards)
    for name, shard in shards.items():
        if wholes[name].isnan().any():
            raise NoInitialiser(
                f"parameter {unwrapped_name(f'{path}.{name}' if path else name)!r} ({type(module).__name__}) was "
                "not given all of its values by the initialiser: let init= fill it, or load it from a checkpoint."
            )
        write(shard, wholes[name])
