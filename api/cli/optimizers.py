"""Optimizer groups from the name of an optimizer."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from planner.block_names import template
from planner.layout.atoms import table_names
from planner.schema import ModelDescription, OptimizerName


def groups_of(name: str, implementation: str, model: ModelDescription) -> list[dict[str, str]]:
    """One group for all parameters; for Muon its matrices, and AdamW for what Muon is not made for.

    That is vectors and stacks of matrices, embeddings and heads.
    """
    if name != OptimizerName.MUON:
        return [{"optimizer": name, "implementation": implementation}]
    others = ",".join(_not_for_muon(model))
    apart = [{"parameters": others, "implementation": implementation}] if others else []
    return [*apart, {"optimizer": name}]


def _not_for_muon(model: ModelDescription) -> Iterator[str]:
    """Globs, the block number left open where that takes no matrix along."""
    tables = table_names(model)
    parameters = {name: p for name, p in model.iter_parameters() if p.requires_grad and p.tied_to is None}
    others = {name for name, p in parameters.items() if len(p.shape) != 2 or name in tables}
    matrices = parameters.keys() - others
    for glob in dict.fromkeys(template(name) for name in parameters if name in others):
        members = [name for name in parameters if name in others and template(name) == glob]
        takes_matrices = any(fnmatchcase(name, glob) for name in matrices)
        yield from members if takes_matrices else [glob]
