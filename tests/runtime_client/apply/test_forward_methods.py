"""Which methods can be named, and how the Python of a plan registers them."""

import pytest

from planner.schema import InconsistentRequest
from planner.script import calls
from runtime_client.apply import apply_plan
from runtime_client.errors import UnknownForwardMethod, UnknownModule
from tests.runtime_client.apply.test_apply import LAYERS, ROOT, plan_for, sharded, small
from tests.runtime_client.plans import decisions


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("generate", UnknownForwardMethod, "'generate': Llama has no method 'generate'"),
        ("layers.0.encode", UnknownForwardMethod, "Block has no method 'encode'"),
        ("layers.0.forward", UnknownForwardMethod, "forward gathers by itself"),
        ("layers.9.encode", UnknownModule, r"decisions\.forward_methods: the model has no module 'layers\.9'"),
    ],
)
def test_what_is_no_method_is_refused(world: int, name: str, error: type[Exception], message: str) -> None:
    model = small()
    with pytest.raises(error, match=message):
        apply_plan(model, plan_for(model), device_type="cpu", forward_methods=[name])
    assert sharded(model) == []


def test_the_python_of_a_plan_registers_them() -> None:
    source = calls(decisions((*LAYERS, ROOT), shard=2, forward_methods=("generate", "layers.1.encode")))
    assert "import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method\n" in source
    assert 'register_fsdp_forward_method(model, "generate")\n' in source
    assert 'register_fsdp_forward_method(at("layers.1"), "encode")\n' in source


def test_the_python_of_a_plan_has_units_alone() -> None:
    with pytest.raises(InconsistentRequest, match="methods of modules that are no units"):
        calls(decisions((*LAYERS, ROOT), shard=2, forward_methods=("layers.0.attention.encode",)))
