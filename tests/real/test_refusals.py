"""Each refusal on real ranks: what plain FSDP2 does with the model, and that a plan is refused before it shards."""

import json
from typing import Any

import pytest

from runtime_client import errors
from tests.real.launch import ROOT, run_ranks
from tests.real.refusals import NUM_RANKS, REFUSALS

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """By row, what came of it on each rank."""
    folder = tmp_path_factory.mktemp("refusals")
    outputs = run_ranks(ROOT / "tests/real/refusals.py", NUM_RANKS, timeout_s=300, log_dir=folder)
    found: dict[str, list[dict[str, Any]]] = {}
    for output in outputs:
        for line in map(json.loads, output.stdout.splitlines()):
            found.setdefault(line["name"], []).append(line)
    return found


@pytest.mark.parametrize("name", REFUSALS)
def test_what_fsdp2_does_and_what_we_do(results: dict[str, list[dict[str, Any]]], name: str) -> None:
    case = REFUSALS[name]
    assert len(results[name]) == NUM_RANKS
    for rank in results[name]:
        plain, planned = rank["plain"], rank["planned"]
        if case.ours is None:
            assert plain == planned == {}
        elif isinstance(case.theirs, str):
            assert plain.get(case.theirs) is True
        else:
            assert case.theirs.__name__ in plain["raised"], plain["message"]
            assert case.words in plain["message"]
        if case.ours is not None:
            assert planned.get("raised") == case.ours.__name__, planned
            assert planned["untouched"]


def test_the_document_has_every_refusal() -> None:
    text = (ROOT / "docs/refusals.md").read_text()
    for name in REFUSALS:
        assert f"| {name} |" in text or f'"{name}"' in text, f"docs/refusals.md has no row {name!r}"
    for error in [one for one in errors.ApplyError.__subclasses__() if one.__module__ == errors.__name__]:
        assert f"`{error.__name__}`" in text, f"docs/refusals.md does not name {error.__name__}"
