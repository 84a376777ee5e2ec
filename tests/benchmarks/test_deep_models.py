"""Models of other depths than those that were traced."""

import pytest

from benchmarks.deep_models import deep_model


@pytest.mark.parametrize("num_blocks", [2, 32, 33, 100])
def test_what_callers_hold_ends_where_it_did(num_blocks: int) -> None:
    """Something held through the last block, or the norm after it, is so at any depth; nothing else moves."""
    found = deep_model("llama-3-8b", num_blocks)
    paths = [call.path for call in found.calls]
    assert paths.count("(loss)") == 1
    assert sum(path.startswith("model.layers.") for path in paths) == num_blocks
    assert {paths[tensor.first_call] for tensor in found.shared} == {"model.layers.0"}
    assert {paths[tensor.last_call] for tensor in found.shared} == {
        "model.layers.0",
        f"model.layers.{num_blocks - 1}",
    }
    held = {paths[tensor.held_until] for tensor in found.shared if tensor.held_until is not None}
    assert held == {"model.norm"}
