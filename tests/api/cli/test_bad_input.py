"""What people pass by mistake: one line that names the place, exit code 2, never a traceback."""

import json

import pytest

from api.cli.__main__ import main
from api.cli.documents import write_document

FILES = {
    "nothing": b"",
    "half": b'{"body": {"name": ',
    "no text": bytes(range(256)),
    "a list": b"[1]",
    "nested": b'{"a":' * 50_000,
    "digits": b"9" * 10_000,
    "not a number": b'{"body": NaN}',
}


@pytest.fixture
def request_file(tmp_path, small_request):
    path = tmp_path / "request.json"
    write_document(small_request, path)
    return str(path)


def refusal(capsys, *words):
    assert main(list(words)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("content", FILES.values(), ids=FILES.keys())
def test_files_that_are_no_documents(tmp_path, capsys, request_file, content):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    bad = str(path)
    for words in (
        ["check", bad, "--request", request_file],
        ["simulate", "--request", request_file, "--decisions", bad],
        ["diff", bad, bad],
        ["plan", "--request", bad],
        ["plan", bad, "h100-8", "--seq", "8", "--global-batch", "8"],
    ):
        assert "bad.json" in refusal(capsys, *words)


def test_a_byte_order_mark_does_not_matter(tmp_path, capsys, small_request):
    path = tmp_path / "request.json"
    path.write_bytes(b"\xef\xbb\xbf" + small_request.to_json().encode())
    assert main(["simulate", "--request", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_ns"] > 0


@pytest.mark.parametrize("option", ["--output", "--save-request"])
def test_a_place_to_write_is_looked_at_before_the_search(tmp_path, capsys, request_file, option):
    for place, message in ((tmp_path / "none" / "plan.json", "no such folder"), (tmp_path, "is a folder")):
        assert message in refusal(capsys, "plan", "--request", request_file, option, str(place))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "9999999999999999TB"], "memory_bytes"),
        (["--budget", "9" * 400], "is not a size"),
        (["--fix", "mesh.shard=99999999999999999999"], "mesh.shard=99999999999999999999"),
        (["--fix", f"mesh.shard={'9' * 5000}"], "no mesh and grouping is left"),
        (["--reduce-dtype", "int8"], "workload.precision.reduce_dtype"),
        (["--param-dtype", "float8_e4m3fn"], "workload.precision.param_dtype"),
        (["--gap", "nan"], "gap"),
        (["--micro-batch", "0"], "micro_batch"),
    ],
)
def test_options_of_plan(capsys, words, message):
    assert message in refusal(capsys, "plan", "gpt-2", "gloo-2", "--seq", "1024", "--global-batch", "8", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--reshard", "9" * 30], "reshard_after_forward"),
        (["--prefetch", "-1"], "--prefetch -1"),
        (["--reduce-buffers", "0"], "reduce_scatter_max_input_buffers"),
        (["--shard", "3"], "--shard 3 must divide"),
        (["--unit", "nothing"], "'nothing'"),
        (["--reduce-dtype", "int8"], "workload.precision.reduce_dtype"),
    ],
)
def test_options_of_simulate(capsys, request_file, words, message):
    assert message in refusal(capsys, "simulate", "gpt-2", "gloo-2", "--seq", "1024", "--global-batch", "8", *words)


@pytest.mark.parametrize(("field", "tier"), [("parameter_tier", "nvme"), ("parameter_tier", "host")])
def test_decisions_that_are_not_modelled_are_not_simulated(tmp_path, capsys, request_file, field, tier):
    decisions = {"mesh": {"shard": 4}, "units": [{"modules": [""], field: tier}]}
    decisions |= {"micro_batch": 2, "num_micro_batches": 2, "param_dtype": "bfloat16", "reduce_dtype": "float32"}
    path = tmp_path / "decisions.json"
    path.write_text(json.dumps(decisions))
    assert "_tier" in refusal(capsys, "simulate", "--request", request_file, "--decisions", str(path))
