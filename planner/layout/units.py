"""Buffers of one unit: which parameters may share one, and the layout that pads least."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from planner.catalog.atoms import EIGHT_BIT_BLOCK
from planner.costs.optimizer import EIGHT_BIT_LEAST_ELEMENTS, group_of, is_eight_bit
from planner.layout.atoms import DeclaredAtom, Granularity, atoms_of_request, granularity, optimizer_atom
from planner.layout.planned import LayoutOptions, PlannedBuffer, PlannedUnit
from planner.program.pieces import is_cut
from planner.program.units import Unit
from planner.schema import DType, ElementAtom, Layout, LayoutEntry, OptimizerName, Parameter, WholeAtom, Workload
from solver.layout.flexible import Buffer, FlexibleTensor, JointLayout, JointProblem
from solver.layout.joint import solve_jointly
from solver.layout.problem import LayoutProblem, Tensor, padding_elements
from solver.layout.search import solve_in_given_order

Named = tuple[str, Parameter]
_Sizes = tuple[tuple[int, Granularity], ...]
"""Elements and granularity of each tensor."""
_MILLION = 1_000_000
_MAX_PATH = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferKey:
    """What the parameters of a buffer have in common: FSDP2 and optimizers treat them as one."""

    dtype: DType
    group: int
    """Index in the workload's optimizer groups; -1 for frozen parameters."""
    parameter_group: str
    optimizer: OptimizerName | None
    """What updates them. Muon leaves what is no matrix, embeddings and heads to AdamW."""

    @property
    def words(self) -> str:
        """Part of a layout's name."""
        return f"{self.dtype}/{self.optimizer or 'frozen'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How the optimizer's atoms are kept, the preferred way first."""

    eight_bit_block: int = EIGHT_BIT_BLOCK
    cuts_matrices: bool = False


_WAYS = {
    # With the larger block no shard of a parameter is too small for 8 bits.
    OptimizerName.ADAMW_8BIT: (_Way(eight_bit_block=EIGHT_BIT_LEAST_ELEMENTS), _Way()),
    OptimizerName.MUON: (_Way(), _Way(cuts_matrices=True)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """Buffers of one kind of parameters, and the padding of one buffer in the given order."""

    joint: JointLayout
    given_order_padding_elements: int


@dataclass(slots=True, kw_only=True)
class UnitPlanner:
    """Plans units of one model at one shard degree; equal buffers are solved once."""

    workload: Workload
    tables: frozenset[str]
    """Parameters of embeddings and heads."""
    declared: Sequence[DeclaredAtom]
    options: LayoutOptions
    num_ranks: int
    _solved: dict[_Sizes, _Solved] = field(init=False, default_factory=dict)

    def plan(self, unit: Unit) -> PlannedUnit:
        """Buffers of a unit; parameters without elements are in none.

        Raises:
            InconsistentRequest: no optimizer group matches a trainable parameter.
        """
        members: dict[BufferKey, list[Named]] = {}
        for name, parameter in unit.parameters:
            if parameter.num_elements:
                members.setdefault(self._key(name, parameter), []).append((name, parameter))
        names: Counter[str] = Counter()
        buffers, given_order = [], 0
        for key, named in members.items():
            label = f"{_shortened(unit.modules[0]) or '(root)'}/{key.words}"
            solved = self._best_way(key, named)
            given_order += solved.given_order_padding_elements
            for buffer in solved.joint.buffers:
                names[label] += 1
                number = f"/{names[label]}" if names[label] > 1 else ""
                buffers.append(_planned(f"{label}{number}", key, named, _with_names(buffer, named)))
        return PlannedUnit(modules=unit.modules, buffers=tuple(buffers), given_order_padding_elements=given_order)

    def _key(self, name: str, parameter: Parameter) -> BufferKey:
        group, optimizer = -1, None
        if parameter.requires_grad:
            found = group_of(self.workload, name)
            group, optimizer = self.workload.optimizer_groups.index(found), found.optimizer
            if optimizer is OptimizerName.MUON and not self._is_for_muon(name, parameter):
                optimizer = OptimizerName.ADAMW
        return BufferKey(
            dtype=parameter.dtype, group=group, parameter_group=parameter.optimizer_group, optimizer=optimizer
        )

    def _is_for_muon(self, name: str, parameter: Parameter) -> bool:
        return isinstance(optimizer_atom(self.workload, name, parameter, is_table=name in self.tables), WholeAtom)

    def _best_way(self, key: BufferKey, named: Sequence[Named]) -> _Solved:
        """The first way of keeping the optimizer's atoms with accepted padding, or the one with the least."""
        ways = _WAYS[key.optimizer] if key.optimizer in _WAYS else (_Way(),)
        best: _Solved | None = None
        for way in ways:
            found = self._solve(tuple((p.num_elements, self._granularity(name, p, way)) for name, p in named))
            if found.joint.padding_elements * _MILLION <= self.options.accepted_ppm * found.joint.num_elements:
                return found
            if best is None or found.joint.padding_elements < best.joint.padding_elements:
                best = found
        assert best is not None, "there is at least one way"
        return best

    def _granularity(self, name: str, parameter: Parameter, way: _Way) -> Granularity:
        asked = optimizer_atom(
            self.workload,
            name,
            parameter,
            is_table=name in self.tables,
            eight_bit_block=way.eight_bit_block,
        )
        if way.cuts_matrices and isinstance(asked, WholeAtom):
            asked = ElementAtom()
        for one in self.declared:
            if fnmatchcase(name, one.pattern):
                return granularity(parameter, one.atom, asked)
        own, *further = atoms_of_request(self.workload, name, parameter, is_table=name in self.tables)
        return granularity(parameter, own, *further, asked)

    def _solve(self, sizes: _Sizes) -> _Solved:
        """One buffer where it pads little; otherwise as many as save enough. Tensors are named by their number."""
        if sizes not in self._solved:
            total = sum(elements for elements, _ in sizes)
            enough = self.options.one_buffer_ppm * total // _MILLION
            found = solve_jointly(self._joint_problem(sizes, 1, enough))
            if found.padding_elements > enough and self.options.max_buffers > 1 and len(sizes) > 1:
                several = solve_jointly(self._joint_problem(sizes, self.options.max_buffers, enough))
                if several.padding_elements + (len(several.buffers) - 1) * enough < found.padding_elements:
                    found = several
            given = self._in_given_order(sizes)
            self._solved[sizes] = _Solved(joint=found, given_order_padding_elements=given)
        return self._solved[sizes]

    def _in_given_order(self, sizes: _Sizes) -> int:
        tensors = (
            Tensor(
                name=str(number),
                num_elements=elements,
                atom_elements=grain.least_steps * grain.step_elements,
            )
            for number, (elements, grain) in enumerate(sizes)
        )
        problem = LayoutProblem(
            tensors=tuple(tensors),
            num_ranks=self.num_ranks,
            alignment_elements=self.options.alignment_elements,
        )
        return padding_elements(problem, solve_in_given_order(problem).shard_elements)

    def _joint_problem(self, sizes: _Sizes, max_buffers: int, elements_per_buffer: int) -> JointProblem:
        return JointProblem(
            tensors=tuple(
                FlexibleTensor(
                    name=str(number),
                    num_elements=elements,
                    step_elements=grain.step_elements,
                    least_steps=grain.least_steps,
                    most_steps=grain.most_steps,
                )
                for number, (elements, grain) in enumerate(sizes)
            ),
            rank_options=(self.num_ranks,),
            alignment_elements=self.options.alignment_elements,
            max_buffers=max_buffers,
            elements_per_buffer=elements_per_buffer,
        )


def _planned(name: str, key: BufferKey, named: Sequence[Named], solved: Buffer) -> PlannedBuffer:
    problem, offsets = solved.problem, solved.layout.offsets
    held = {tensor.name for tensor in problem.tensors}
    parameters = tuple((name, parameter) for name, parameter in named if name in held)
    entries = sorted(zip(offsets, problem.tensors, strict=True), key=lambda pair: pair[0])
    layout = Layout(
        name=name,
        dtype=key.dtype,
        shard_elements=solved.layout.shard_elements,
        entries=tuple(
            LayoutEntry(parameter=tensor.name, offset_elements=offset, num_elements=tensor.num_elements)
            for offset, tensor in entries
        ),
    )
    is_muon, is_eight = key.optimizer is OptimizerName.MUON, key.optimizer is OptimizerName.ADAMW_8BIT
    return PlannedBuffer(
        layout=layout,
        parameters=parameters,
        solved=solved,
        owned=frozenset(entry.parameter for entry in layout.entries if is_muon and is_cut(layout, entry)),
        eight_bit=frozenset(name for name, p in parameters if is_eight and is_eight_bit(p.num_elements)),
    )


def _shortened(path: str) -> str:
    """The end of a path too long for a layout's name."""
    return path if len(path) <= _MAX_PATH else f"...{path[-_MAX_PATH:]}"


def _with_names(buffer: Buffer, named: Sequence[Named]) -> Buffer:
    """A buffer whose tensors are named by their number, with full names."""
    problem = buffer.problem
    tensors = tuple(
        Tensor(
            name=named[int(tensor.name)][0],
            num_elements=tensor.num_elements,
            atom_elements=tensor.atom_elements,
        )
        for tensor in problem.tensors
    )
    return Buffer(
        problem=LayoutProblem(
            tensors=tensors, num_ranks=problem.num_ranks, alignment_elements=problem.alignment_elements
        ),
        layout=buffer.layout,
    )
