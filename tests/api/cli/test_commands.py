import json

import pytest
from typer.testing import CliRunner

from api.cli.__main__ import main
from api.cli.commands import app
from api.cli.documents import write_document
from planner import __version__
from planner.schema import PlanBody

COMMANDS = (
    "plan",
    "layout",
    "simulate",
    "check",
    "diff",
    "timeline",
    "dryrun",
    "describe",
    "profile",
    "catalog",
    "schema",
    "serve",
    "keys",
    "version",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Usage: shardwright {command}" in " ".join(result.output.split()).replace("root ", "shardwright ")


def test_without_words_the_help_is_shown(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_version(capsys):
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"shardwright {__version__}\n")


def test_schema_prints_what_pydantic_says(capsys):
    assert main(["schema", "plan"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("$schema").endswith("2020-12/schema")
    assert printed == PlanBody.model_json_schema()


def test_catalog_lists_devices_links_and_documents(capsys):
    assert main(["catalog"]) == 0
    text = capsys.readouterr().out
    assert "H100-80G" in text
    assert "h100-8" in text
    assert main(["catalog", "--json"]) == 0
    assert {"devices", "links"} == set(json.loads(capsys.readouterr().out))


def test_diff_of_two_files(tmp_path, capsys, bodies, decide):
    write_document(bodies(), tmp_path / "a.json")
    write_document(bodies(decisions=decide(checkpointed=())), tmp_path / "b.json")
    assert main(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    assert "activations checkpoint -> keep" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan"], "MODEL is missing; a request needs MODEL, CLUSTER, --seq and --global-batch"),
        (["plan", "--sequence", "1"], "No such option"),
        (
            ["plan", "nothing", "h100-8", "--seq", "1", "--global-batch", "8"],
            "unknown model (no such file either) 'nothing'",
        ),
        (["plan", "--optimizer", "lion"], "'--optimizer'"),
        (["diff", "a.json"], "Missing argument 'B'"),
        (["diff", "a.json", "b.json"], "a.json: no such file or directory"),
        (["check", "."], ".: is a directory"),
        (["describe"], "give either TARGET (pkg.module:build) or --hf config.json"),
        (["frobnicate"], "No such command 'frobnicate'"),
    ],
)
def test_an_error_of_the_user_is_one_line(capsys, words, said):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    assert said in captured.err


def test_an_invalid_document_names_its_path(tmp_path, capsys, request_document):
    value = json.loads(request_document.to_json())
    value["workload"]["micro_batch"] = "two"
    path = tmp_path / "request.json"
    path.write_text(json.dumps(value))
    assert main(["plan", "--request", str(path)]) == 2
    assert f"{path} is not a valid request: workload.micro_batch:" in capsys.readouterr().err


def test_square_brackets_in_an_error_are_not_markup(tmp_path, capsys, request_document):
    value = json.loads(request_document.to_json())
    value["model"]["calls"][0]["kind"] = ""
    path = tmp_path / "request.json"
    path.write_text(json.dumps(value))
    assert main(["plan", "--request", str(path)]) == 2
    assert "model.calls[0].kind" in capsys.readouterr().err
