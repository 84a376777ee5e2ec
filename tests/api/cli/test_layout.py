"""`shardwright layout` with the real planner."""

import json

import pytest

from api.cli.__main__ import main
from api.cli.atoms import parse_atom
from api.cli.documents import write_document
from planner.layout.atoms import DeclaredAtom, RowRange
from planner.schema import (
    ElementAtom,
    FlatAtom,
    InvalidDocument,
    Layout,
    RowsAtom,
    TileAtom,
    UnknownName,
    WholeAtom,
)
from tests.planner.factories import CallSpec, tiny_model


@pytest.fixture
def model_file(tmp_path):
    """Blocks of 8 x 6 and 8 x 5, embedding and head of 16 x 4."""
    path = tmp_path / "model.json"
    write_document(tiny_model(3, block=CallSpec(shapes=((8, 6), (8, 5)), full_saved=0)), path)
    return path


def text_of(capsys, *words):
    assert main(["layout", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_a_page(model_file, capsys):
    text = text_of(capsys, model_file, "--ranks", 8, "--alignment", 1, "--atom", "layers.*=rows:1")
    lines = text.splitlines()
    assert "tiny  396 elements in 4 units on 8 ranks" in lines
    assert "layers.0-2  88 elements, 2 buffers" in lines
    assert "  padding 0 %   given order 118 %   FSDP2 0 %" in lines
    assert "  float32/adamw  48, shards of 6, padding 0 % (optimal)" in lines
    assert f"  ranks 0-7 |{'a' * 64}|" in lines
    assert "  a w0  8 x 6, by 1 row, ranks 0-7" in lines
    assert "  float32/adamw/2  40, shards of 5, padding 0 % (optimal)" in lines


def test_ranks_that_hold_the_same_are_one_bar(model_file, capsys):
    """16 x 4, 4 and 16 x 4 on four ranks of 33: half of the bar of rank 1 and a bit of rank 2 are others."""
    lines = text_of(capsys, model_file, "--ranks", 4, "--alignment", 1).splitlines()
    root = lines[lines.index("(root)  132 elements, 1 buffer") :]
    assert root[3:7] == [
        f"  rank 0 |{'a' * 64}|",
        f"  rank 1 |{'a' * 60}{'b' * 4}|",
        f"  rank 2 |{'b' * 4}{'c' * 60}|",
        f"  rank 3 |{'c' * 64}|",
    ]
    assert root[7:10] == [
        "  a embed.w0  16 x 4, any cut, ranks 0-1",
        "  b norm.w0   4, any cut, ranks 1-2",
        "  c head.w0   16 x 4, any cut, ranks 2-3",
    ]


def test_padding_is_drawn_and_bounded(tmp_path, capsys):
    path = tmp_path / "model.json"
    write_document(tiny_model(1, block=CallSpec(shapes=((3, 4),), full_saved=0)), path)
    lines = text_of(capsys, path, "--ranks", 2, "--alignment", 1, "--atom", "layers.*=rows:1").splitlines()
    assert "  padding 33.3 %   given order 33.3 %   FSDP2 33.3 %" in lines
    assert f"  rank 1 |{'a' * 32}{'.' * 32}|" in lines


def test_json(model_file, capsys):
    found = json.loads(
        text_of(capsys, model_file, "--ranks", 8, "--alignment", 1, "--atom", "layers.*=rows:1", "--json")
    )
    assert (found["model"], found["num_ranks"], found["num_elements"]) == ("tiny", 8, 396)
    assert [unit["modules"] for unit in found["units"]] == [[""], ["layers.0"], ["layers.1"], ["layers.2"]]
    block = found["units"][1]
    assert (block["padding_elements"], block["given_order_padding_elements"]) == (0, 8 * 24 - 88)
    layouts = [Layout.model_validate(buffer["layout"]) for buffer in block["buffers"]]
    assert [layout.shard_elements for layout in layouts] == [6, 5]
    assert block["buffers"][0]["atom_elements"] == {"layers.0.w0": 6}
    assert block["buffers"][0]["status"] == "optimal"
    assert found["owners"] is None
    assert found["notes"] == []


def test_owners(tmp_path, capsys):
    path = tmp_path / "model.json"
    write_document(tiny_model(2, block=CallSpec(shapes=((8, 8),) * 4, full_saved=0)), path)
    words = (path, "--ranks", 8, "--alignment", 1, "--optimizer", "muon")
    text = " ".join(text_of(capsys, *words).split())
    assert "8 cut matrices are updated whole by their owners: the busiest has 1 with 15.4 kFLOP" in text
    assert "a w0 8 x 8, whole on its owner, ranks 0-1" in text
    owners = json.loads(text_of(capsys, *words, "--json"))["owners"]
    assert sorted(owners["owner"].values()) == list(range(8))
    assert owners["largest_flops"] == owners["lower_bound_flops"] == 15_360


def test_of_several_degrees_the_largest_that_pads_little(model_file, capsys):
    found = json.loads(
        text_of(capsys, model_file, "--ranks", "4, 8,64", "--alignment", 1, "--atom", "*=rows:1", "--json")
    )
    assert found["num_ranks"] == 8


def test_a_further_unit(model_file, capsys):
    found = json.loads(text_of(capsys, model_file, "--unit", "norm,head", "--json"))
    assert [unit["modules"] for unit in found["units"]][-1] == ["norm", "head"]


def test_a_shipped_model_by_name(capsys):
    lines = text_of(capsys, "gpt-2", "--ranks", 8, "--optimizer", "adamw_8bit").splitlines()
    assert "transformer.h.0-11  7.09 M elements, 1 buffer" in lines
    assert any("attn.c_attn.weight  768 x 2304, by 4,096 elements" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "atom"),
    [
        ("*=element", ElementAtom()),
        ("*=whole", WholeAtom()),
        ("a.*.w = flat:256", FlatAtom(num_elements=256)),
        ("*=rows:16", RowsAtom(num_rows=16)),
        ("*=rows:16-128", RowRange(least_rows=16, most_rows=128)),
        ("*=rows:128-16", RowRange(least_rows=16, most_rows=128)),
        ("*=tile:128x64", TileAtom(num_rows=128, num_columns=64)),
        ("*=nf4-64x256", FlatAtom(num_elements=64 * 256)),
    ],
)
def test_atoms(text, atom):
    assert parse_atom(text) == DeclaredAtom(pattern=text.partition("=")[0].strip(), atom=atom)


@pytest.mark.parametrize(
    "text", ["rows:16", "=rows:16", "*=rows:0", "*=rows:a", "*=rows:1-", "*=tile:128", "*=flat:"]
)
def test_what_is_no_atom(text):
    with pytest.raises(InvalidDocument):
        parse_atom(text)


def test_an_unknown_atom():
    with pytest.raises(UnknownName, match="nf4"):
        parse_atom("*=nf5")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "0"], "--ranks '0' is not a number from 1 to 100000"),
        (["--ranks", "100001"], "--ranks '100001' is not a number from 1 to 100000"),
        (["--ranks", "8,x"], "--ranks 'x' is not a number from 1 to 100000"),
        (["--alignment", "-8"], "--alignment '-8' is not a number from 1 to"),
        (["--atom", "rows:16"], "is not GLOB=ATOM"),
        (["--atom", "layer.*=rows:16"], "'layer.*' matches no parameter"),
        (["--unit", "nowhere"], "names no module with parameters"),
    ],
)
def test_errors_name_what_is_wrong(model_file, capsys, words, message):
    assert main(["layout", str(model_file), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("ranks", [1, 1000])
def test_one_rank_and_more_ranks_than_rows(model_file, capsys, ranks):
    found = json.loads(text_of(capsys, model_file, "--ranks", ranks, "--alignment", 1, "--json"))
    assert found["num_ranks"] == ranks
    assert found["padding_elements"] == {1: 0, 1000: 4 * 1000 - 396}[ranks]


def test_an_unknown_model(capsys):
    assert main(["layout", "llama-9"]) == 2
    assert "llama-3-8b" in capsys.readouterr().err


def test_many_names_are_cut_short(tmp_path, capsys):
    path = tmp_path / "model.json"
    write_document(tiny_model(1, block=CallSpec(shapes=((4, 4),) * 20, full_saved=0)), path)
    lines = text_of(capsys, path, "--ranks", 20, "--alignment", 1).splitlines()
    assert "  ... 8 more runs of ranks that hold the same" in lines
    assert "  ... 4 more names" in lines
