"""The frontier: which modules are calls, which of them are blocks, and which only contain others."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import nn

from planner.schema.model import CallRole

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierModule:
    """A module that calls are made of. A container has the role glue: its own code is what its calls run."""

    path: str
    module: nn.Module
    role: CallRole
    may_repeat: bool = False
    """One forward may run it several times; each run is a call."""

    @property
    def is_container(self) -> bool:
        """Whether calls of other frontier modules happen inside."""
        return self.role is CallRole.GLUE


def find_frontier(root: nn.Module) -> tuple[FrontierModule, ...]:
    """All frontier modules in registration order, containers included; a module registered twice is listed twice.

    Descends from the root through every module that holds a block list below it. A block list is a `ModuleList`,
    `ModuleDict` or `Sequential` with two children of one class that have parameters and parts (or are no
    built-in layers); its children are the blocks. A module without such a list below is a call of its own.
    """
    return tuple(_descend("", root))


def with_parameters(frontier: Iterable[FrontierModule]) -> frozenset[nn.Module]:
    """Modules with parameters, containers left out."""
    modules = {item.module for item in frontier if not item.is_container}
    return frozenset(module for module in modules if any(True for _ in module.parameters()))


def _descend(path: str, module: nn.Module) -> Iterator[FrontierModule]:
    block_classes = _block_classes(module)
    if not block_classes and not any(_block_classes(child) for child in module.modules()):
        yield FrontierModule(path=path, module=module, role=_role(path, module), may_repeat=True)
        return
    yield FrontierModule(path=path, module=module, role=CallRole.GLUE)
    for name, child in module._modules.items():
        if child is None:
            continue
        child_path = f"{path}.{name}" if path else name
        if block_classes and _is_block(module, child, block_classes):
            yield FrontierModule(path=child_path, module=child, role=CallRole.BLOCK, may_repeat=True)
        else:
            yield from _descend(child_path, child)


def _is_block(parent: nn.Module, child: nn.Module, block_classes: frozenset[type[nn.Module]]) -> bool:
    if type(child) in block_classes:
        return True
    return not isinstance(parent, nn.Sequential) and _has_parts(child)


def _block_classes(module: nn.Module) -> frozenset[type[nn.Module]]:
    if not isinstance(module, _LISTS):
        return frozenset()
    children = [child for child in module._modules.values() if child is not None]
    counts = Counter(type(child) for child in children if _has_parts(child))
    return frozenset(cls for cls, count in counts.items() if count >= 2)


def _has_parts(module: nn.Module) -> bool:
    is_builtin_layer = type(module).__module__.startswith("torch.nn.") and not any(module.children())
    return not is_builtin_layer and any(True for _ in module.parameters())


def _role(path: str, module: nn.Module) -> CallRole:
    name = f"{path.rpartition('.')[2]} {type(module).__name__}".lower()
    if "norm" in type(module).__name__.lower():
        return CallRole.NORM
    if isinstance(module, nn.Embedding) or "embed" in name:
        return CallRole.EMBEDDING
    if any(word in name for word in ("head", "classifier", "output", "unembed")):
        return CallRole.HEAD
    return CallRole.OTHER
