"""The commands with the real planner."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from api.cli.__main__ import main
from api.cli.documents import load_plan, write_document
from planner.schema import Plan, PlanRequest, Predictions

PROGRAM = shutil.which("shardwright", path=str(Path(sys.executable).parent))


@pytest.fixture
def request_file(tmp_path, small_request):
    path = tmp_path / "request.json"
    write_document(small_request, path)
    return path


@pytest.fixture
def crowded_file(tmp_path, crowded_request):
    path = tmp_path / "crowded.json"
    write_document(crowded_request, path)
    return path


@pytest.fixture
def plan_file(tmp_path, request_file):
    path = tmp_path / "plan.json"
    assert main(["plan", "--request", str(request_file), "-o", str(path)]) == 0
    return path


def test_a_plan_is_written_and_told(tmp_path, capsys, request_file):
    path = tmp_path / "plan.json"
    assert main(["plan", "--request", str(request_file), "-o", str(path)]) == 0
    captured = capsys.readouterr()
    assert load_plan(path).outcome == "feasible"
    assert "per step" in captured.out
    assert "checked independently" in captured.out
    assert f"shardwright check {path} --request {request_file}" in " ".join(captured.out.split())
    assert "bound" in captured.err


def test_json_is_the_document_alone(capsys, request_file):
    assert main(["plan", "--request", str(request_file), "--json"]) == 0
    plan = Plan.from_json(capsys.readouterr().out)
    assert plan.verify()


def test_options_and_a_saved_request_give_the_same_plan(tmp_path, capsys, small_request):
    write_document(small_request.model, tmp_path / "model.json")
    write_document(small_request.cluster, tmp_path / "cluster.json")
    words = ["--seq", "4096", "--micro-batch", "2", "--global-batch", "16", "--effort", "2", "--gap", "0.02"]
    places = [str(tmp_path / "model.json"), str(tmp_path / "cluster.json")]
    saved = tmp_path / "saved.json"
    assert main(["plan", *places, *words, "--save-request", str(saved), "--json"]) == 0
    first = Plan.from_json(capsys.readouterr().out)
    assert PlanRequest.from_json(saved.read_text()) == small_request
    assert main(["plan", "--request", str(saved), "--json"]) == 0
    assert Plan.from_json(capsys.readouterr().out).envelope.plan_id == first.envelope.plan_id


def test_nothing_fits(tmp_path, capsys, crowded_file):
    path = tmp_path / "none.json"
    assert main(["plan", "--request", str(crowded_file), "-o", str(path)]) == 3
    captured = capsys.readouterr()
    assert "Nothing fits" in captured.out
    assert load_plan(path).infeasibility is not None


def test_a_fixed_choice_that_no_knob_has_is_refused(tmp_path, capsys, small_request):
    write_document(small_request.model, tmp_path / "model.json")
    write_document(small_request.cluster, tmp_path / "cluster.json")
    words = ["--seq", "4096", "--micro-batch", "2", "--global-batch", "16", "--fix", "layers.*.colour=red"]
    assert main(["plan", str(tmp_path / "model.json"), str(tmp_path / "cluster.json"), *words]) == 2
    assert "layers.*.colour" in capsys.readouterr().err.splitlines()[-1]


def test_a_plan_passes_the_check_and_a_changed_one_does_not(tmp_path, capsys, request_file, plan_file):
    capsys.readouterr()
    assert main(["check", str(plan_file), "--request", str(request_file)]) == 0
    assert capsys.readouterr().out.startswith("passed  small  feasible")
    body = json.loads(load_plan(plan_file).to_json())
    body["predictions"]["peak"]["reserved_bytes"] += 1
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(body))
    assert main(["check", str(changed), "--request", str(request_file)]) == 1
    assert "failed" in capsys.readouterr().out


def test_a_plan_of_another_request_fails_the_check(tmp_path, capsys, small_request, plan_file):
    other = small_request.model_copy(
        update={"workload": small_request.workload.model_copy(update={"global_batch": 32})}
    )
    write_document(other, tmp_path / "other.json")
    assert main(["check", str(plan_file), "--request", str(tmp_path / "other.json")]) == 1
    assert "inputs.workload" in capsys.readouterr().out


def test_simulating_the_decisions_of_a_plan_gives_its_predictions(capsys, request_file, plan_file):
    capsys.readouterr()
    assert main(["simulate", "--request", str(request_file), "--decisions", str(plan_file), "--json"]) == 0
    predictions = Predictions.model_validate_json(capsys.readouterr().out)
    assert predictions == load_plan(plan_file).predictions


def test_checkpointing_by_hand_takes_less_memory_and_more_time(capsys, request_file):
    def predict(*words):
        assert main(["simulate", "--request", str(request_file), "--json", *words]) == 0
        return Predictions.model_validate_json(capsys.readouterr().out)

    plain, checkpointed = predict(), predict("--checkpoint", "full")
    assert checkpointed.peak.reserved_bytes < plain.peak.reserved_bytes
    assert checkpointed.step_time_ns > plain.step_time_ns


def test_no_configuration_by_hand_beats_the_bound(capsys, request_file, plan_file):
    certificate = load_plan(plan_file).certificate
    assert certificate is not None
    capsys.readouterr()
    for words in (["--reshard", "false"], ["--reshard", "true"], ["--unit", "head"], ["--prefetch", "1"]):
        assert main(["simulate", "--request", str(request_file), "--json", *words]) == 0
        predictions = Predictions.model_validate_json(capsys.readouterr().out)
        assert predictions.step_time_ns >= certificate.lower_bound


def test_the_first_command_of_the_readme(tmp_path):
    assert PROGRAM is not None
    words = ["plan", "llama-3-8b", "h100-8", "--seq", "4096", "--global-batch", "64", "-o", "plan.json"]
    result = subprocess.run(
        [PROGRAM, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "model.layers." in result.stdout
    assert load_plan(tmp_path / "plan.json").world_size == 8


def test_on_a_terminal_progress_is_one_line_that_goes_away(tmp_path, request_file):
    assert PROGRAM is not None
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "90"}
    with subprocess.Popen(
        [PROGRAM, "plan", "--request", str(request_file), "-o", str(tmp_path / "plan.json")],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env=environment,
        cwd=tmp_path,
    ) as process:
        os.close(terminal)
        written = _read_all(controller)
        assert process.stdout is not None
        told = process.stdout.read().decode()
    assert process.returncode == 0
    assert "\x1b[2K" in written
    assert "bound" in written
    assert "per step" in told
    assert "\x1b" not in told


def _read_all(controller):
    chunks = []
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(controller)
    return b"".join(chunks).decode(errors="replace")


def test_apply_explains_the_calls_of_a_plan(plan_file, tmp_path, capsys):
    output = tmp_path / "sharding.py"
    assert main(["apply", str(plan_file), "--explain", "-o", str(output)]) == 0
    compile(output.read_text(), "sharding.py", "exec")
    assert load_plan(plan_file).content_hash() in output.read_text()
    assert "fully_shard(model, mesh=mesh" in output.read_text()
    capsys.readouterr()
    assert main(["apply", str(plan_file)]) == 2
    assert "apply_plan(model, plan)" in capsys.readouterr().err
