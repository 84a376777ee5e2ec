"""The whole way: describe a model, ask a running service, hand the plan to all ranks, train.

Nothing is replaced by a stand-in: the service is a process with its own database, its planner another one, and the
ranks are processes that talk gloo.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from planner.schema import FixedChoice, ModelDescription, Plan, PlanRequest
from runtime_client.client import PlanClient
from tests.real.launch import ROOT, run_ranks
from tests.real.service import running_service
from tests.real.small_llama import NUM_STEPS, describe_model, request_for

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_service(tmp_path_factory.mktemp("service") / "plans.db") as address:
        yield address


@pytest.fixture(scope="module")
def model() -> ModelDescription:
    return describe_model()


def tight_request(url: str, model: ModelDescription, num_ranks: int, cache_dir: Path) -> PlanRequest:
    """A request that allows three fifths of what the fastest plan takes; two shards, so 4 ranks replicate."""
    client = PlanClient(url, cache_dir=cache_dir, deadline_s=60)
    body = client.plan(request_for(model, num_ranks, shard=2)).plan.body
    assert body.predictions is not None
    assert body.decisions is not None
    assert not body.decisions.activations
    limit = body.predictions.peak.reserved_bytes * 3 // 5
    request = request_for(model, num_ranks, shard=2, memory_bytes=limit)
    whole_blocks = FixedChoice(knob="split_blocks", value=False)
    return request.model_copy(update={"fixed": (*request.fixed, whole_blocks)})


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_plan_of_the_service_trains_as_by_hand(
    url: str, model: ModelDescription, num_ranks: int, tmp_path: Path
) -> None:
    request = tight_request(url, model, num_ranks, tmp_path / "cache")
    (tmp_path / "request.json").write_text(request.to_json())
    outputs = run_ranks(
        ROOT / "tests/real/train_planned.py",
        num_ranks,
        [url, str(tmp_path / "request.json"), str(tmp_path / "cache")],
        log_dir=tmp_path / "logs",
        timeout_s=300,
    )
    ranks = [json.loads(output.stdout) for output in outputs]
    plan = PlanClient(url, cache_dir=tmp_path / "cache", deadline_s=60).plan(request).plan
    decisions = plan.body.decisions
    assert decisions is not None
    assert (decisions.mesh.replicate, decisions.mesh.shard) == (num_ranks // 2, 2)
    assert decisions.activations
    assert {rank["plan_id"] for rank in ranks} == {plan.envelope.plan_id}
    for rank in ranks:
        assert rank["plan"] == rank["hand"]
        assert float.fromhex(rank["plan"]["losses"][-1]) < float.fromhex(rank["plan"]["losses"][0])
        assert counted(rank["plan"]["collectives"]) == predicted(plan)


def counted(issued: list[str]) -> list[int]:
    names = [line.split()[0] for line in issued]
    return [names.count(name) for name in ("_allgather_base_", "_reduce_scatter_base_", "allreduce_")]


def predicted(plan: Plan) -> list[int]:
    numbers = plan.body.predictions
    assert numbers is not None
    return [
        NUM_STEPS * count
        for count in (numbers.num_all_gathers, numbers.num_reduce_scatters, numbers.num_all_reduces)
    ]


def test_equal_requests_have_one_plan_and_equal_bytes(url: str, model: ModelDescription) -> None:
    request = request_for(model, 2, shard=2)
    headers = {"Content-Type": "application/json"}
    answers = [
        httpx2.post(f"{url}/v1/plans", params={"wait": 60}, content=text, headers=headers, timeout=90)
        for text in (request.to_json(), request.model_dump_json())
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].content == answers[1].content
    plan = Plan.from_json(answers[0].content)
    assert plan.verify()
    again = httpx2.get(f"{url}/v1/plans/{plan.envelope.plan_id}")
    assert Plan.from_json(again.content).body == plan.body


def test_a_client_without_its_service_goes_on_with_the_last_plan(model: ModelDescription, tmp_path: Path) -> None:
    request = request_for(model, 2, shard=2)
    with running_service(tmp_path / "plans.db") as url:
        client = PlanClient(url, cache_dir=tmp_path / "cache", deadline_s=60)
        fresh = client.plan(request)
    assert (fresh.source, fresh.stale) == ("service", False)
    late = PlanClient(url, cache_dir=tmp_path / "cache", deadline_s=2).plan(request)
    assert (late.source, late.stale) == ("cache", True)
    assert late.plan == fresh.plan
    assert url in late.reason
