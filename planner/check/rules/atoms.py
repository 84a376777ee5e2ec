"""Atoms: no shard ends inside what a parameter must keep together."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from math import ceil, prod

from planner.check.units import module_owners, owner
from planner.schema.atom import Atom, ElementAtom, FlatAtom, RowsAtom, WholeAtom
from planner.schema.decisions import Decisions
from planner.schema.model import Parameter
from planner.schema.request import PlanRequest


def atom_problems(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    """Shards that cut an atom of the workload or the description; structure and layouts have to be sound."""
    owners = module_owners(decisions.units)
    layouts = {layout.name: layout for layout in decisions.layouts}
    places = {
        entry.parameter: (layouts[name].shard_elements, entry.offset_elements)
        for unit in decisions.units
        for name in unit.layouts
        for entry in layouts[name].entries
    }
    other_dims = {item.parameter for item in decisions.shard_dims}
    for name, parameter in request.model.iter_parameters():
        index, atom = owner(name, owners), _atom(request, name, parameter)
        if parameter.tied_to is not None or index is None or isinstance(atom, ElementAtom):
            continue
        ranks = decisions.mesh_of(decisions.units[index]).shard
        step = _elements(atom, parameter)
        cuts = _ends(parameter, ranks, *places.get(name, (None, 0)))
        if (name in other_dims and ranks > 1 and step > 1) or any(cut % step for cut in cuts):
            yield f"parameter {name!r}: a shard of {ranks} ends inside its atom of {step} elements"


def _atom(request: PlanRequest, name: str, parameter: Parameter) -> Atom:
    for rule in request.workload.atoms:
        if fnmatchcase(name, rule.parameters):
            return rule.atom
    return parameter.atom


def _elements(atom: Atom, parameter: Parameter) -> int:
    """Consecutive elements that stay together; vectors have no rows, stacks of matrices no tiles over two."""
    shape, whole = parameter.shape, parameter.num_elements
    if isinstance(atom, ElementAtom):
        return 1
    if isinstance(atom, WholeAtom) or not parameter.contiguous:
        return whole
    if isinstance(atom, FlatAtom):
        return min(atom.num_elements, whole)
    if len(shape) < 2:
        return 1
    rows = atom.num_rows if isinstance(atom, RowsAtom) else min(atom.num_rows, shape[-2])
    if not isinstance(atom, RowsAtom) and len(shape) > 2 and shape[-2] % rows:
        rows = shape[-2]
    return min(rows, prod(shape[:-1])) * shape[-1]


def _ends(parameter: Parameter, ranks: int, shard_elements: int | None, offset: int) -> Sequence[int]:
    """Ends of shards inside a parameter, counted from its first element."""
    if shard_elements is None:
        chunk = ceil(parameter.shape[0] / ranks) * prod(parameter.shape[1:])
        return range(chunk, parameter.num_elements, chunk)
    first = offset // shard_elements + 1
    last = -(-(offset + parameter.num_elements) // shard_elements)
    return [edge * shard_elements - offset for edge in range(first, last)]
