"""`profile merge` and `profile import`; measuring itself is tested on real ranks (`tests/real/test_profile.py`)."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli.__main__ import main
from api.cli.commands import app
from api.cli.documents import load_profile
from api.cli.profile import _tell, parse_point
from planner.schema import CallMeasurement, InvalidDocument, Profile, TracePoint
from runtime_client.profile import Profiled

TABLE = "kind,micro_batch,sequence,pass,duration_ms\nblock,1,4096,forward,{}\n"


def imported(folder: Path, name: str, milliseconds: float) -> Path:
    table = folder / f"{name}.csv"
    table.write_text(TABLE.format(milliseconds))
    output = folder / f"{name}.json"
    assert main(["profile", "import", str(table), "-o", str(output)]) == 0
    return output


def test_tables_are_imported_and_merged(tmp_path: Path) -> None:
    files = [imported(tmp_path, name, time) for name, time in (("a", 1.0), ("b", 1.5), ("c", 1.1))]
    assert load_profile(files[0]).name == "a"
    output = tmp_path / "all.json"
    assert main(["profile", "merge", *map(str, files), "--name", "rack", "-o", str(output)]) == 0
    made = load_profile(output)
    assert (made.name, made.calls[0].forward_ns) == ("rack", 1_100_000)


def test_a_host_that_contradicts_the_others_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [imported(tmp_path, name, time) for name, time in (("a", 1.0), ("b", 1.5), ("c", 2000.0))]
    assert main(["profile", "merge", *map(str, files)]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "profile.calls[2].forward_ns is 2,000,000,000 ns for 'block' at 1 x 4096" in text


def test_without_an_output_the_profile_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = imported(tmp_path, "a", 1.0)
    capsys.readouterr()
    assert main(["profile", "merge", str(output)]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "a"


def test_what_is_no_command_is_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "nowhere:build", "--seq", "8"]) == 2
    assert "'nowhere:build' cannot be loaded" in " ".join(capsys.readouterr().err.split())
    assert main(["profile", "--seq", "8"]) == 2
    assert "give either TARGET" in " ".join(capsys.readouterr().err.split())


def test_a_profile_that_no_plan_will_take_says_so_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """As on a busy machine: a backward that waited for a core, 300 times as long as its forward."""
    calls = (CallMeasurement(kind="block", micro_batch=1, sequence=8, forward_ns=80_000, backward_ns=24_000_000),)
    _tell(Profiled(profile=Profile(calls=calls), skipped=()))
    told = capsys.readouterr().err
    assert "no plan will take this profile" in told
    assert "profile.calls[0].backward_ns is 24,000,000 ns" in told
    _tell(Profiled(profile=Profile(calls=(calls[0].model_copy(update={"backward_ns": 160_000}),)), skipped=()))
    assert "no plan" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["measure", "merge", "import"])
def test_help(command: str) -> None:
    assert CliRunner().invoke(app, ["profile", command, "--help"]).exit_code == 0


def test_sizes() -> None:
    assert parse_point("2x4096") == TracePoint(micro_batch=2, sequence=4096)
    for text in ("2", "x4096", "0x8", "2x-8", "axb"):
        with pytest.raises(InvalidDocument, match="is not a size"):
            parse_point(text)
