"""What a shard boundary must not cut: of a parameter's description, optimizer and quantizer, or declared."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from math import lcm, prod

from planner.catalog.atoms import EIGHT_BIT_BLOCK, QUANTIZER_ATOMS
from planner.costs.optimizer import group_of, is_eight_bit
from planner.schema import (
    Atom,
    CallRole,
    ElementAtom,
    FlatAtom,
    ModelDescription,
    OptimizerName,
    Parameter,
    RowsAtom,
    TileAtom,
    WholeAtom,
    Workload,
)

_TABLES = frozenset({CallRole.EMBEDDING, CallRole.HEAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Atoms of any number of rows in a range; the planner chooses."""

    least_rows: int
    most_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredAtom:
    """An atom that replaces the one of the description where the full name matches a glob."""

    pattern: str
    atom: Atom | RowRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Granularity:
    """The atom is `least_steps` to `most_steps` times `step_elements`, counted from the first element."""

    step_elements: int
    least_steps: int = 1
    most_steps: int = 1


def granularity(parameter: Parameter, own: Atom | RowRange, *further: Atom) -> Granularity:
    """What keeps all atoms whole: their least common multiple, at most the whole tensor."""
    others = together_elements(further, parameter)
    if not isinstance(own, RowRange):
        return Granularity(step_elements=_together(atom_elements(own, parameter), others, parameter))
    row = atom_elements(RowsAtom(num_rows=1), parameter)
    if row == 1:
        return Granularity(step_elements=others)
    step = _together(row, others, parameter)
    least = -(-own.least_rows * row // step)
    return Granularity(step_elements=step, least_steps=least, most_steps=max(least, own.most_rows * row // step))


def together_elements(atoms: Iterable[Atom], parameter: Parameter) -> int:
    """Consecutive elements that keep every atom of a parameter whole."""
    return reduce(
        lambda one, other: _together(one, other, parameter), (atom_elements(atom, parameter) for atom in atoms), 1
    )


def atom_elements(atom: Atom, parameter: Parameter) -> int:
    """Consecutive elements of a contiguous tensor that stay together; 1 where any cut is allowed.

    Vectors have no rows or tiles. Tiles start anew with each matrix of a stack, so where they do not divide its
    rows the whole matrix stays together. Without contiguous storage nothing but single elements can be counted off.
    """
    match atom:
        case ElementAtom():
            return 1
        case WholeAtom():
            return max(1, parameter.num_elements)
        case _ if not parameter.contiguous:
            return max(1, parameter.num_elements)
        case FlatAtom(num_elements=elements):
            return min(elements, max(1, parameter.num_elements))
        case RowsAtom(num_rows=rows) if len(parameter.shape) > 1:
            return min(rows, prod(parameter.shape[:-1])) * parameter.shape[-1]
        case TileAtom(num_rows=rows) if len(parameter.shape) > 1:
            of_matrix, columns = parameter.shape[-2:]
            divides = len(parameter.shape) == 2 or of_matrix % rows == 0
            return (min(rows, of_matrix) if divides else of_matrix) * columns
        case _:
            return 1


def optimizer_atom(
    workload: Workload, name: str, parameter: Parameter, *, is_table: bool, eight_bit_block: int = EIGHT_BIT_BLOCK
) -> Atom:
    """What the optimizer of a parameter asks for.

    8-bit state (torchao, bitsandbytes) has a scale for each 256 elements, where the parameter is large enough to
    have it; Muon's iteration needs whole matrices, which embeddings and heads are not to it; Adafactor has a factor
    for each row. Everything else is element by element.

    Args:
        workload: its optimizer groups.
        name: full name of the parameter.
        parameter: what is cut.
        is_table: it is an embedding or a head.
        eight_bit_block: elements for 8-bit state; a multiple of 256.

    Raises:
        InconsistentRequest: no group matches a trainable parameter.
    """
    if not parameter.requires_grad:
        return ElementAtom()
    match group_of(workload, name).optimizer:
        case OptimizerName.ADAMW_8BIT if is_eight_bit(parameter.num_elements):
            return FlatAtom(num_elements=eight_bit_block)
        case OptimizerName.MUON if len(parameter.shape) == 2 and not is_table:
            return WholeAtom()
        case OptimizerName.ADAFACTOR:
            return RowsAtom(num_rows=1)
        case _:
            return ElementAtom()


def atoms_of_request(workload: Workload, name: str, parameter: Parameter, *, is_table: bool) -> tuple[Atom, ...]:
    """That of the workload's first rule that matches; or those of the description and of what quantizes it."""
    for rule in workload.atoms:
        if rule.holds(name):
            return (rule.atom,)
    for group in workload.quantizer_groups:
        if group.holds(name, len(parameter.shape), is_table=is_table):
            return parameter.atom, QUANTIZER_ATOMS[group.quantizer]
    return (parameter.atom,)


def table_names(model: ModelDescription) -> frozenset[str]:
    """Full names of the parameters of embeddings and heads."""
    paths = {call.path for call in model.calls if model.kinds[call.kind].role in _TABLES}
    return frozenset(name for name, _ in model.iter_parameters() if _owner(name) in paths)


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _together(one: int, other: int, parameter: Parameter) -> int:
    return min(lcm(one, other), max(1, parameter.num_elements))
