"""Methods that enter a model beside forward: they gather on real ranks, and fail where nobody has named them."""

import json
from pathlib import Path

import pytest

from tests.real.launch import ROOT, run_ranks

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_named_methods_gather_and_others_meet_shards(tmp_path: Path) -> None:
    outputs = run_ranks(ROOT / "tests/real/forward_methods.py", 2, timeout_s=300, log_dir=tmp_path)
    for output in outputs:
        *cases, generate, unregistered = map(json.loads, output.stdout.splitlines())
        assert [found["case"] for found in cases] == ["unit", "no unit", "ragged", "checkpointed"]
        for found in cases:
            assert all(found["equal"]), found
            assert found["methods"] == ["embed", "tower.encode"]
        assert generate == {"case": "generate", "equal": [True, True]}
        assert unregistered["case"] == "unregistered"
        assert "mixed torch.Tensor and DTensor" in unregistered["error"]
