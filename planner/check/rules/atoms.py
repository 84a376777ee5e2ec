"""Atoms: no shard ends inside what a parameter must keep together."""

from collections.abc import Iterator, Sequence
from math import ceil, lcm, prod

from planner.check.units import module_owners, owner
from planner.schema.atom import Atom, ElementAtom, FlatAtom, RowsAtom, TileAtom, WholeAtom
from planner.schema.decisions import Decisions
from planner.schema.model import CallRole, Parameter
from planner.schema.request import PlanRequest
from planner.schema.workload import Quantizer

# Values that share a scale: QLoRA (arXiv 2305.14314, double quantization of 64 x 256), DeepSeek-V3's tiles
# (arXiv 2412.19437), OCP Microscaling 1.0, NVIDIA's NVFP4.
_BLOCKS: dict[Quantizer, Atom] = {
    Quantizer.NF4: FlatAtom(num_elements=16_384),
    Quantizer.FP8_ROWWISE: RowsAtom(num_rows=1),
    Quantizer.FP8_BLOCKWISE: TileAtom(num_rows=128, num_columns=128),
    Quantizer.INT8_ROWWISE: RowsAtom(num_rows=1),
    Quantizer.MX: FlatAtom(num_elements=32),
    Quantizer.NVFP4: FlatAtom(num_elements=16),
}


def atom_problems(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    """Shards that cut what the workload or the description keeps whole; structure and layouts have to be sound."""
    owners = module_owners(decisions.units)
    layouts = {layout.name: layout for layout in decisions.layouts}
    places = {
        entry.parameter: (layouts[name].shard_elements, entry.offset_elements)
        for unit in decisions.units
        for name in unit.layouts
        for entry in layouts[name].entries
    }
    tables = {
        call.path
        for call in request.model.calls
        if request.model.kinds[call.kind].role in (CallRole.EMBEDDING, CallRole.HEAD)
    }
    other_dims = {item.parameter for item in decisions.shard_dims}
    for name, parameter in request.model.iter_parameters():
        index = owner(name, owners)
        step = _step(request, name, parameter, is_table=name.rpartition(".")[0] in tables)
        if parameter.tied_to is not None or index is None or step < 2:
            continue
        ranks = decisions.mesh_of(decisions.units[index]).shard
        cuts = _ends(parameter, ranks, *places.get(name, (None, 0)))
        if (name in other_dims and ranks > 1) or any(cut % step for cut in cuts):
            yield f"parameter {name!r}: a shard of {ranks} ends inside its atom of {step} elements"


def _step(request: PlanRequest, name: str, parameter: Parameter, *, is_table: bool) -> int:
    """Elements that stay together: of the first rule, or the least multiple of description and quantizer."""
    for rule in request.workload.atoms:
        if rule.holds(name):
            return _elements(rule.atom, parameter)
    step = _elements(parameter.atom, parameter)
    for group in request.workload.quantizer_groups:
        if group.holds(name, len(parameter.shape), is_table=is_table):
            step = lcm(step, _elements(_BLOCKS[group.quantizer], parameter))
            break
    return min(step, max(1, parameter.num_elements))


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
