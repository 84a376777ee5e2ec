"""The modes of `plan` that make several plans or change the sizes of the job, with the real planner."""

import json

import pytest

from api.cli.__main__ import main
from api.cli.documents import load_plan, read_document, write_document
from planner.schema import Limits, Objective, Plan, PlanRequest

GIB = 2**30


@pytest.fixture
def request_file(tmp_path, small_request):
    path = tmp_path / "request.json"
    write_document(small_request, path)
    return path


@pytest.fixture
def limited_file(tmp_path, small_request):
    """With so little memory that neither every micro-batch nor every number of ranks will do."""
    path = tmp_path / "limited.json"
    write_document(small_request.model_copy(update={"limits": Limits(memory_bytes=4 * GIB)}), path)
    return path


def test_a_front_is_written_plan_by_plan_with_the_requests(tmp_path, capsys, request_file):
    places = ["-o", str(tmp_path / "plan.json"), "--save-request", str(tmp_path / "asked.json")]
    assert main(["plan", "--request", str(request_file), "--front", "3", *places]) == 0
    text = " ".join(capsys.readouterr().out.split())
    plans = sorted(tmp_path.glob("plan-*.json"))
    assert [path.name for path in plans] == [f"plan-{number + 1}.json" for number in range(len(plans))]
    assert 2 <= len(plans) <= 3
    assert not (tmp_path / "plan.json").exists()
    for path in plans:
        assert str(path) in "".join(text.split())
        asked = tmp_path / path.name.replace("plan", "asked")
        assert main(["check", str(path), "--request", str(asked)]) == 0
    steps = [load_plan(path).predictions.step_time_ns for path in plans]
    peaks = [load_plan(path).predictions.peak.reserved_bytes for path in plans]
    assert steps == sorted(steps)
    assert peaks == sorted(peaks, reverse=True)
    last = read_document(PlanRequest, tmp_path / f"asked-{len(plans)}.json")
    assert last.objective is Objective.PEAK_MEMORY
    assert "From plan 1 to plan 2" in text
    assert f"{peaks[-1] / GIB:.2f}" in text


def test_a_front_as_json_is_a_list_of_plans(capsys, request_file):
    assert main(["plan", "--request", str(request_file), "--front", "2", "--json"]) == 0
    plans = [Plan.from_json(json.dumps(value)) for value in json.loads(capsys.readouterr().out)]
    assert [plan.body.certificate.objective for plan in plans] == ["step_time_ns", "peak_memory_bytes"]
    assert all(plan.verify() for plan in plans)


@pytest.mark.parametrize("words", [["--front", "3"], ["--largest-micro-batch"]])
def test_where_nothing_fits_the_exit_code_says_so(tmp_path, capsys, crowded_request, words):
    write_document(crowded_request.model_copy(update={"limits": Limits(memory_bytes=1)}), tmp_path / "r.json")
    assert main(["plan", "--request", str(tmp_path / "r.json"), *words]) == 3
    assert "Nothing fits" in capsys.readouterr().out


def test_the_largest_micro_batch_and_why_no_larger_one(tmp_path, capsys, limited_file):
    saved = tmp_path / "asked.json"
    words = ["--largest-micro-batch", "-o", str(tmp_path / "plan.json"), "--save-request", str(saved)]
    assert main(["plan", "--request", str(limited_file), *words]) == 0
    text = " ".join(capsys.readouterr().out.split())
    size = load_plan(tmp_path / "plan.json").decisions.micro_batch
    assert size < 4, "the largest that divides 4 sequences a rank would hide the reason"
    assert f"the largest micro-batch: {size} sequence" in text
    assert f"with {2 * size}: every plan needs at least" in text
    assert f"shardwright check {tmp_path / 'plan.json'} --request {saved}" in text
    assert main(["check", str(tmp_path / "plan.json"), "--request", str(saved)]) == 0


def test_the_words_of_a_larger_micro_batch_make_its_request_again(tmp_path, capsys, small_request):
    write_document(small_request.model, tmp_path / "model.json")
    write_document(small_request.cluster, tmp_path / "cluster.json")
    places = [str(tmp_path / "model.json"), str(tmp_path / "cluster.json")]
    words = [*places, "--seq", "4096", "--global-batch", "16", "--effort", "2", "--gap", "0.02"]
    assert main(["plan", *words, "--largest-micro-batch"]) == 0
    text = capsys.readouterr().out
    assert "the largest micro-batch: 4 sequences" in text
    assert "--micro-batch 4" in text.splitlines()[-2]
    assert "--largest-micro-batch" not in text


def test_the_fewest_ranks_and_a_batch_that_they_can_split(tmp_path, capsys, small_request):
    group = small_request.cluster.node_groups[0].model_copy(update={"num_nodes": 2, "devices_per_node": 1})
    cluster = small_request.cluster.model_copy(update={"node_groups": (group,), "inter_node": "pcie4-x16"})
    workload = small_request.workload.model_copy(update={"micro_batch": 1, "global_batch": 16})
    limits = Limits(memory_bytes=4 * GIB)
    asked = small_request.model_copy(update={"cluster": cluster, "workload": workload, "limits": limits})
    write_document(asked, tmp_path / "r.json")
    words = ["--fewest-ranks", "-o", str(tmp_path / "plan.json"), "--save-request", str(tmp_path / "asked.json")]
    assert main(["plan", "--request", str(tmp_path / "r.json"), *words]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert load_plan(tmp_path / "plan.json").world_size == 3
    assert "the fewest: 3 ranks; on 2: every plan needs at least" in text
    assert "the global batch is 18, because 16 cannot be split over 3" in text
    assert main(["check", str(tmp_path / "plan.json"), "--request", str(tmp_path / "asked.json")]) == 0


def test_a_plan_whose_request_is_nowhere_is_not_offered_for_checking(tmp_path, capsys, request_file):
    words = ["--fewest-ranks", "-o", str(tmp_path / "plan.json")]
    assert main(["plan", "--request", str(request_file), *words]) == 0
    text = capsys.readouterr().out
    assert f"Savedas{tmp_path / 'plan.json'}" in "".join(text.split())
    assert "shardwright check" not in text


def test_least_memory_within_a_step_time(tmp_path, capsys, small_request):
    write_document(small_request.model, tmp_path / "model.json")
    write_document(small_request.cluster, tmp_path / "cluster.json")
    places = [str(tmp_path / "model.json"), str(tmp_path / "cluster.json")]
    words = [*places, "--seq", "4096", "--micro-batch", "2", "--global-batch", "16", "--effort", "2"]
    assert main(["plan", *words, "--json"]) == 0
    fastest = Plan.from_json(capsys.readouterr().out).body.predictions
    limit = ["--objective", "peak-memory", "--step-time", f"{fastest.step_time_ns * 11 // 10}ns"]
    assert main(["plan", *words, *limit, "-o", str(tmp_path / "plan.json")]) == 0
    captured = capsys.readouterr()
    text = " ".join(captured.out.split())
    body = load_plan(tmp_path / "plan.json")
    assert body.certificate.objective == "peak_memory_bytes"
    assert body.predictions.peak.reserved_bytes < fastest.peak.reserved_bytes
    assert body.predictions.step_time_ns <= fastest.step_time_ns * 11 // 10
    assert "least peak memory within" in text
    assert "GiB  bound " in captured.err
    assert f"shardwright check {tmp_path / 'plan.json'} " in text
    assert "--objective peak-memory" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--front", "3", "--fewest-ranks"], "--front and --fewest-ranks exclude each other; give one of them"),
        (["--front", "1"], "a front has at least 2 points, not 1"),
        (["--front", "3", "-o", "nowhere/plan.json"], "nowhere: no such folder to write to"),
        (["--fewest-ranks", "--save-request", "nowhere/r.json"], "nowhere: no such folder to write to"),
    ],
)
def test_what_cannot_be_asked_is_one_line(tmp_path, capsys, monkeypatch, request_file, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--request", str(request_file), *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {said}\n"
