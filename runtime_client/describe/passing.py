"""Lets blocks hand on their inputs, where the trace of an equal block tells what they would do."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A forward that returns inputs only: the first for what it would compute, others as the block does itself."""

    sources: tuple[int | None, ...]
    """For each output the input that it is, counted over the leaves of all arguments; None for None."""
    is_tuple: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - stands for the forward of any module
        """Take the place of `forward`."""
        leaves = tree_leaves((args, kwargs))
        outputs = tuple(None if source is None else leaves[source] for source in self.sources)
        return outputs if self.is_tuple else outputs[0]


def find_passage(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Passage | None:  # noqa: ANN401
    """How a module that was called like this can be left out, if at all.

    Its result must be a tensor like its first argument, alone or first in a tuple of which all else came in.
    """
    is_tuple = type(output) is tuple
    outputs = output if is_tuple else (output,)
    if not (args and outputs and _are_alike(args[0], outputs[0])):
        return None
    leaves = tree_leaves((args, kwargs))
    sources: list[int | None] = [0]
    for value in outputs[1:]:
        source = next((index for index, leaf in enumerate(leaves) if leaf is value), None)
        if source is None and value is not None:
            return None
        sources.append(source)
    return Passage(sources=tuple(sources), is_tuple=is_tuple)


def _are_alike(one: Any, other: Any) -> bool:  # noqa: ANN401 - arguments and results of any module
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    return one.shape == other.shape and one.dtype == other.dtype
