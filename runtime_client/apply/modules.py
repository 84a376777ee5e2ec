"""Modules of a model by the paths of a plan, seen through checkpoint and compile wrappers."""

import difflib

from torch import nn

from runtime_client.errors import UnknownModule
from runtime_client.fingerprint import unwrapped_name

WRAPPER_ATTRIBUTES = ("_checkpoint_wrapped_module", "_orig_mod")


def inner_module(module: nn.Module) -> nn.Module:
    """The module inside any number of checkpoint and compile wrappers; the module itself without one."""
    while (wrapped := _wrapped(module)) is not None:
        module = wrapped
    return module


def wrappers_of(module: nn.Module) -> list[nn.Module]:
    """The wrappers around `inner_module(module)`, outermost first."""
    found = []
    while (wrapped := _wrapped(module)) is not None:
        found.append(module)
        module = wrapped
    return found


def find_module(root: nn.Module, path: str, *, where: str) -> nn.Module:
    """The module at a path (wrappers included, as its parent holds it); `""` is the root.

    Raises:
        UnknownModule: a step of the path does not exist; `where` says which field of the plan named it.
    """
    module = root
    for step in path.split(".") if path else ():
        child = inner_module(module)._modules.get(step)
        if child is None:
            raise UnknownModule(
                f"{where}: the model has no module {path!r} ({_nearest(root, path)}). Plan this model again, "
                "or apply the plan to the module that was described."
            )
        module = child
    return module


def replace_module(root: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever a parent holds `old`."""
    for parent in list(root.modules()):
        for name, child in list(parent._modules.items()):
            if child is old and parent is not new:
                parent.register_module(name, new)


def _wrapped(module: nn.Module) -> nn.Module | None:
    for attribute in WRAPPER_ATTRIBUTES:
        child = module._modules.get(attribute)
        if child is not None:
            return child
    return None


def _nearest(root: nn.Module, path: str) -> str:
    names = [unwrapped_name(name) for name, _ in root.named_modules() if name]
    close = difflib.get_close_matches(path, names, n=3)
    return f"nearest: {', '.join(close)}" if close else f"it has {len(names)} modules"
