import doctest

from planner import block_names
from planner.block_names import fold_names, index_words, template


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(block_names).failed == 0


def test_only_whole_path_components_count_as_block_numbers():
    assert template("layer1.conv2") == "layer1.conv2"
    assert template("0.attn") == "*.attn"
    assert template("layers.3.experts.5") == "layers.*.experts.5"


def test_families_stay_apart():
    assert fold_names(["enc.0", "dec.0", "enc.1", "dec.1"]) == "enc.0-1, dec.0-1"
    assert fold_names(["layers.3.experts.5", "layers.4.experts.5"]) == "layers.3-4.experts.5"


def test_one_and_two_numbers_are_not_a_progression():
    assert index_words([4]) == "4"
    assert index_words([4, 8]) == "4,8"
