import pytest

from planner.catalog import ATOMS, atom
from planner.schema import FlatAtom, TileAtom, UnknownName, WholeAtom


def test_well_known_atoms():
    assert atom("8bit-block256") == FlatAtom(num_elements=256)
    assert atom("nf4-64x256") == FlatAtom(num_elements=16_384)
    assert atom("fp8-tile128x128") == TileAtom(num_rows=128, num_columns=128)
    assert atom("mx-block32") == FlatAtom(num_elements=32)
    assert atom("shampoo") == WholeAtom()
    assert atom("muon") == WholeAtom()


def test_the_mapping_cannot_be_changed():
    with pytest.raises(TypeError):
        ATOMS["muon"] = FlatAtom(num_elements=1)  # type: ignore[index]


def test_unknown_atom_lists_the_known_ones():
    with pytest.raises(UnknownName, match=r"unknown atom 'mx'; known: .*muon.*nf4-64x256"):
        atom("mx")
