"""Build a model whose parameters take no memory, and whose buffers are real."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

_register = nn.Module.register_parameter


@contextmanager
def on_meta() -> Iterator[None]:
    """Modules that are built inside have their parameters on the meta device, everything else where it belongs.

    `with torch.device("meta")` also loses what no checkpoint has: buffers that are not persistent, like the
    frequencies of rotary embeddings. Here a parameter exists for as long as it takes to register it, and what its
    module then does to initialise it costs nothing. Tied parameters stay tied.
    """
    before = nn.Module.register_parameter
    nn.Module.register_parameter = _register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = before  # type: ignore[method-assign]


def _register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
    """Lazy parameters and other subclasses are left as they are."""
    if type(parameter) is nn.Parameter and not parameter.is_meta:
        moved = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        moved.__dict__.update(parameter.__dict__)
        parameter = moved
    _register(module, name, parameter)
