import json

import pytest

from api.cli.documents import load_cluster, load_decisions, load_model, load_plan, shipped, write_document
from planner.schema import InvalidDocument, UnknownName


def test_a_plan_is_read_with_and_without_its_envelope(tmp_path, feasible_plan):
    write_document(feasible_plan, tmp_path / "plan.json")
    write_document(feasible_plan.body, tmp_path / "body.json")
    assert load_plan(tmp_path / "plan.json") == load_plan(tmp_path / "body.json") == feasible_plan.body
    assert sorted(path.name for path in tmp_path.iterdir()) == ["body.json", "plan.json"]


def test_a_plan_changed_by_hand_is_refused(tmp_path, feasible_plan):
    value = json.loads(feasible_plan.to_json())
    value["body"]["decisions"]["micro_batch"] = 2
    (tmp_path / "plan.json").write_text(json.dumps(value))
    with pytest.raises(InvalidDocument, match="was changed after planning"):
        load_plan(tmp_path / "plan.json")


def test_decisions_alone_or_out_of_a_plan(tmp_path, feasible_plan, infeasible_plan):
    decisions = feasible_plan.body.decisions
    write_document(feasible_plan, tmp_path / "plan.json")
    (tmp_path / "decisions.json").write_text(decisions.model_dump_json(exclude_defaults=True))
    assert load_decisions(tmp_path / "plan.json") == load_decisions(tmp_path / "decisions.json") == decisions
    write_document(infeasible_plan, tmp_path / "none.json")
    with pytest.raises(InvalidDocument, match="infeasible and has no decisions"):
        load_decisions(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text('{"units": []}')
    with pytest.raises(InvalidDocument, match="not a valid set of decisions"):
        load_decisions(tmp_path / "broken.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "not JSON: line 1"),
        (b"[1]", "holds list"),
        (b"\xff\xfe", "not UTF-8"),
        (b"{}", "name: Field required"),
    ],
)
def test_what_is_no_plan_is_refused_with_its_place(tmp_path, text, said):
    path = tmp_path / "plan.json"
    path.write_bytes(text)
    with pytest.raises(InvalidDocument, match=said) as caught:
        load_plan(path)
    assert str(path) in str(caught.value)


def test_shipped_documents_are_valid_and_found_by_name():
    for name in shipped("clusters"):
        assert load_cluster(name).num_devices >= 2
    for name in shipped("models"):
        assert load_model(name).num_parameters > 0
    assert "h100-8" in shipped("clusters")


def test_a_file_wins_over_a_shipped_name(tmp_path, monkeypatch, request_document):
    monkeypatch.chdir(tmp_path)
    other = request_document.cluster.model_copy(update={"name": "mine"})
    write_document(other, tmp_path / "h100-8")
    assert load_cluster("h100-8").name == "mine"


def test_an_unknown_name_lists_the_known_ones_and_a_missing_file_says_so():
    with pytest.raises(UnknownName, match=r"known: .*h100-8"):
        load_cluster("h200-9000")
    with pytest.raises(FileNotFoundError, match="no such file; shipped clusters"):
        load_cluster("nowhere/cluster.json")
