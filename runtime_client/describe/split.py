"""Where blocks are split into parts: the one place that says how deep."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from planner.schema.model import CallRole
from runtime_client.describe.frontier import FrontierModule

_WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """A block is split into its children that have parameters; a child of those again where it holds experts.

    Attributes:
        experts_word: what the path or the class of a module of experts contains, in lower case.
        min_experts_share: a module below a router is one of experts when it has at least this share of the
            parameters of the two.
    """

    experts_word: str = "expert"
    min_experts_share: float = 0.5

    def splits(self, item: FrontierModule, depth: int) -> bool:
        """Whether a call of this module is split; `depth` is 0 for a block, 1 for its children, and so on."""
        if item.role is not CallRole.BLOCK:
            return False
        return depth == 0 or self._holds_experts(item.module)

    def _holds_experts(self, module: nn.Module) -> bool:
        num_all = _num_elements(module)
        return any(
            num_all > _num_elements(below) >= self.min_experts_share * num_all
            for path, below in module.named_modules()
            if path and self._is_named_experts(path, below)
        )

    def _is_named_experts(self, path: str, module: nn.Module) -> bool:
        name = f"{path} {type(module).__name__}".lower()
        return self.experts_word in name and not isinstance(module, _WITHOUT_FORWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A frontier in which some calls are replaced by their parts.

    Attributes:
        frontier: as `find_frontier` gives it. What was split is a container, its children have the role of blocks,
            which checkpoints them in checkpointed runs, and earlier blocks have another role.
        modules: paths of what was split, skipped ones among them.
    """

    frontier: tuple[FrontierModule, ...]
    modules: frozenset[str]


def split_frontier(
    frontier: Sequence[FrontierModule], rule: SplitRule, depth: int, *, skipped: frozenset[str] = frozenset()
) -> Split:
    """Replace the blocks of a frontier that a rule splits by their children.

    A child that several of them have in common belongs to the code around it.

    Args:
        frontier: frontier whose blocks are split.
        rule: which ones, and how deep.
        depth: how often these blocks were split already.
        skipped: blocks that will let their input pass: they have no parts.
    """
    children = _own_children(item for item in frontier if rule.splits(item, depth) and item.path not in skipped)
    modules = {path for path in children if children[path]}
    modules |= {item.path for item in frontier if item.path in skipped and rule.splits(item, depth)}
    items: list[FrontierModule] = []
    for item in frontier:
        if item.path in modules:
            items += [replace(item, role=CallRole.GLUE), *children.get(item.path, ())]
        else:
            items.append(replace(item, role=CallRole.OTHER) if item.role is CallRole.BLOCK else item)
    return Split(frontier=tuple(items), modules=frozenset(modules))


def role_of_part(item: FrontierModule | None) -> CallRole:
    """Role of a part of a call; None stands for the code of the call between its children."""
    if item is None or item.is_container:
        return CallRole.GLUE
    return CallRole.NORM if "norm" in type(item.module).__name__.lower() else CallRole.OTHER


def _own_children(parents: Iterable[FrontierModule]) -> dict[str, list[FrontierModule]]:
    """By path of the parent; a parent that is registered twice has them once."""
    first = {parent.module: parent for parent in reversed(list(parents))}
    found = {parent.path: list(_children(parent, parent.path)) for parent in reversed(first.values())}
    num_parents = Counter(module for items in found.values() for module in {item.module for item in items})
    return {path: [item for item in items if num_parents[item.module] == 1] for path, items in found.items()}


def _children(parent: FrontierModule, path: str) -> Iterator[FrontierModule]:
    module = parent.module.get_submodule(path[len(parent.path) :].lstrip("."))
    for name, child in module.named_children():
        child_path = f"{path}.{name}"
        if isinstance(child, _WITHOUT_FORWARD):
            yield from _children(parent, child_path)
        elif _num_elements(child):
            yield FrontierModule(path=child_path, module=child, role=CallRole.BLOCK, may_repeat=True)


def _num_elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
