"""Atoms are told apart by their type, also where what equals a default is left out."""

import pytest

from planner.schema import (
    Atom,
    AtomRule,
    ElementAtom,
    FlatAtom,
    RowsAtom,
    TileAtom,
    WholeAtom,
    Workload,
)

ATOMS = (
    ElementAtom(),
    FlatAtom(num_elements=3),
    RowsAtom(num_rows=3),
    TileAtom(num_rows=3, num_columns=3),
    WholeAtom(),
)


def workload(atom: Atom) -> Workload:
    return Workload(micro_batch=1, sequence=1, global_batch=1, atoms=(AtomRule(atom=atom),))


@pytest.mark.parametrize("atom", ATOMS)
def test_a_workload_can_be_read_from_its_canonical_bytes(atom: Atom) -> None:
    asked = workload(atom)
    assert Workload.from_json(asked.canonical_bytes()) == asked
    assert Workload.from_json(asked.to_json()) == asked


def test_no_two_atoms_have_one_identity() -> None:
    assert len({workload(atom).content_hash() for atom in ATOMS}) == len(ATOMS)
