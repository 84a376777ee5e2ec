"""State in host memory: every option of Adam gives what torch's own optimizer gives."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from runtime_client.offload.errors import (
    OptimizerClosed,
    OptimizerStepFailed,
    StepAlreadyBegun,
    UnsupportedOptimizer,
)
from tests.runtime_client.offload.training import WIDTHS, build, found, groups, offloaded, same, train


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize(
    "options",
    [{}, {"fused": True}, {"foreach": True}, {"amsgrad": True}, {"weight_decay": 0.1, "maximize": True}],
    ids=str,
)
@pytest.mark.parametrize("in_backward", [False, True])
def test_equals_torch_to_the_last_bit(
    kind: type[torch.optim.Adam], options: dict[str, Any], *, in_backward: bool
) -> None:
    plain, other = build(), build()
    optimizer = kind(groups(plain), lr=1e-3, **options)
    offload = offloaded(other, kind, in_backward=in_backward, **options)
    train(plain, optimizer, range(5))
    train(other, offload, range(5))
    assert same(found(plain, optimizer), found(other, offload))
    assert offload.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    offload.close()


def test_learning_rate_of_each_step_is_that_of_the_scheduler() -> None:
    plain, other = build(), build()
    arms = ((plain, torch.optim.AdamW(groups(plain), lr=torch.tensor(1e-3))), (other, offloaded(other)))
    for model, optimizer in arms:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        for step in range(4):
            train(model, optimizer, range(step, step + 1))
            scheduler.step()
    (one, first), (two, second) = arms
    for name, value in found(one, first).items():
        torch.testing.assert_close(found(two, second)[name], value)


def test_state_of_torch_is_loaded_and_goes_back() -> None:
    plain, other = build(), build()
    optimizer = torch.optim.AdamW(groups(plain), lr=1e-3)
    train(plain, optimizer, range(3))
    offload = offloaded(other)
    other.load_state_dict(plain.state_dict())
    offload.load_state_dict(deepcopy(optimizer.state_dict()))
    for model, one in ((plain, optimizer), (other, offload)):
        train(model, one, range(3, 5))
    assert same(found(plain, optimizer), found(other, offload))
    again = torch.optim.AdamW(groups(build()), lr=1e-3)
    again.load_state_dict(offload.state_dict())
    assert all(
        torch.equal(again.state_dict()["state"][i][k], v)
        for i, s in optimizer.state_dict()["state"].items()
        for k, v in s.items()
    )


def test_parameters_without_a_gradient_stay_as_they_are() -> None:
    plain, other = build(), build()
    optimizer, offload = torch.optim.AdamW(groups(plain), lr=1e-3), offloaded(other)
    for model, one in ((plain, optimizer), (other, offload)):
        train(model, one, range(1))
        model[0].requires_grad_(False)
        model[2].bias.requires_grad_(False)
        train(model, one, range(1, 3))
    assert same(found(plain, optimizer), found(other, offload))


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        (torch.optim.SGD, {}, "not for SGD"),
        (torch.optim.NAdam, {}, "not for NAdam"),
        (torch.optim.AdamW, {"capturable": True}, "capturable=True"),
        (torch.optim.AdamW, {"differentiable": True}, "differentiable=True"),
    ],
)
def test_other_optimizers_and_options_are_refused(kind: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(UnsupportedOptimizer, match=match):
        offloaded(build(), kind, **options)


def test_adamw_stays_adamw_with_the_state_of_adam() -> None:
    """As torch's: decay stays decoupled from the gradients."""
    model, expected = build(), build()
    source = build()
    adam = torch.optim.Adam(groups(source), lr=1e-3, weight_decay=0.1)
    train(source, adam, range(2))
    optimizer, plain = offloaded(model), torch.optim.AdamW(groups(expected), lr=1e-3)
    for one, other in ((optimizer, model), (plain, expected)):
        one.load_state_dict(deepcopy(adam.state_dict()))
        train(other, one, range(2, 4))
    assert same(found(model, optimizer), found(expected, plain))
    optimizer.close()


@pytest.mark.parametrize("has", [False, True])
def test_state_with_other_moments_is_refused(has: bool) -> None:
    model = build()
    optimizer = offloaded(model, amsgrad=has)
    train(model, optimizer, range(1))
    before = found(model, optimizer)
    other = torch.optim.AdamW(groups(build()), amsgrad=not has)
    with pytest.raises(UnsupportedOptimizer, match=f"amsgrad={not has}, and this optimizer has amsgrad={has}"):
        optimizer.load_state_dict(other.state_dict())
    assert same(found(model, optimizer), before)
    optimizer.close()


def test_groups_are_named_at_once() -> None:
    optimizer = offloaded(build())
    with pytest.raises(UnsupportedOptimizer, match="cannot be added later"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})


def test_nothing_goes_on_after_a_step_that_failed() -> None:
    model = build()
    optimizer = offloaded(model)
    train(model, optimizer, range(1))
    optimizer.param_groups[0]["lr"] = "much"
    with pytest.raises(TypeError):
        train(model, optimizer, range(1))
    optimizer.param_groups[0]["lr"] = 1e-3
    with pytest.raises(OptimizerStepFailed, match="go on from a checkpoint"):
        train(model, optimizer, range(1))
    with pytest.raises(OptimizerStepFailed, match="go on from a checkpoint"):
        optimizer.state_dict()
    optimizer.close()


def test_state_of_half_a_step_is_not_saved() -> None:
    """As when a run is interrupted after some units were updated in backward."""
    model = build()
    optimizer = offloaded(model, in_backward=True)
    train(model, optimizer, range(1))
    model[0].register_full_backward_hook(_interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(7, WIDTHS[0], requires_grad=True)).sum().backward()
    with pytest.raises(StepAlreadyBegun, match="'last' was updated in backward and the others were not"):
        optimizer.state_dict()
    optimizer.close()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_while_waiting_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, expected = build(), build()
    optimizer, plain = offloaded(model), torch.optim.AdamW(groups(expected), lr=1e-3)
    train(model, optimizer, range(1))
    with monkeypatch.context() as patch:
        patch.setattr("runtime_client.offload.optimizer.wait", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            optimizer.settle()
    train(model, optimizer, range(1, 2))
    train(expected, plain, range(2))
    assert same(found(model, optimizer), found(expected, plain))
    optimizer.close()


def test_a_closed_optimizer_leaves_backward_alone() -> None:
    model, expected = build(), build()
    closed = offloaded(model, in_backward=True)
    closed.close()
    with pytest.raises(OptimizerClosed):
        closed.step()
    train(model, torch.optim.AdamW(groups(model), lr=1e-3), range(2))
    train(expected, torch.optim.AdamW(groups(expected), lr=1e-3), range(2))
    assert all(map(torch.equal, model.parameters(), expected.parameters()))
