"""What the Python of a plan says, and which plans have none; its calls are compared with FSDP2."""

import pytest

from planner.plan import make_plan
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    InconsistentRequest,
    Limits,
    ShardDim,
    StateTier,
    UnitPlan,
)
from planner.script import calls, script
from tests.planner.factories import tiny_cluster, tiny_model, tiny_request


def test_a_plan_is_a_module_of_python() -> None:
    body = make_plan(tiny_request(tiny_model(3), tiny_cluster(4))).body
    text = script(body)
    compile(text, "plan.py", "exec")
    assert body.content_hash() in text
    assert "for i in range(3):" in text or "fully_shard(at(" in text


def test_an_infeasible_plan_has_nothing_to_carry_out() -> None:
    request = tiny_request(tiny_model(3), tiny_cluster(4)).model_copy(update={"limits": Limits(memory_bytes=1)})
    with pytest.raises(InconsistentRequest, match="infeasible"):
        script(make_plan(request).body)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shard_dims": (ShardDim(parameter="a.w", dim=1),)}, "shards on other dimensions"),
        ({"units": (UnitPlan(modules=("",), optimizer_tier=StateTier.HOST),)}, "optimizer state off the device"),
        ({"activations": (ActivationPlan(module="a", policy=ActivationPolicy.OFFLOAD),)}, "offloaded activations"),
        (
            {
                "activations": (
                    ActivationPlan(module="a", policy=ActivationPolicy.SELECTIVE, saved_ops=("aten.mm(1)",)),
                )
            },
            "names no operation",
        ),
    ],
)
def test_what_torch_alone_does_not_carry_out_is_refused(change: dict[str, object], words: str) -> None:
    decisions = make_plan(tiny_request(tiny_model(2), tiny_cluster(2))).body.decisions
    assert decisions is not None
    with pytest.raises(InconsistentRequest, match=words):
        calls(decisions.model_copy(update=change))
