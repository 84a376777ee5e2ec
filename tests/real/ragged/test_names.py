"""What a user sees of a ragged model: names, state dicts, pieces, errors."""

from pathlib import Path

import pytest

from tests.real.launch import ROOT, run_ranks

pytestmark = [pytest.mark.real, pytest.mark.slow]

CHECKS = [
    "names_and_values",
    "local_pieces",
    "state_dict_at_any_moment",
    "load_whole_tensors",
    "load_another_layout",
    "load_even_shards",
    "load_by_assignment",
    "torch_save",
    "full_state_dict",
    "meta_device",
    "initialised_when_sharded",
    "another_element_type",
    "moved_nowhere",
    "freezing_later",
    "thawing_later",
    "optimizer_in_backward",
    "errors",
    "evaluation",
]


def test_every_check_of_the_script_holds(tmp_path: Path) -> None:
    """The ranks assert, and fail the launch with their traceback."""
    output = run_ranks(ROOT / "tests/real/ragged/names.py", 2, timeout_s=120, log_dir=tmp_path)[0]
    assert output.stdout.split() == CHECKS
