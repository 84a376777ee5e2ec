"""What `apply_plan` does to a model, looked at on one rank of a fake world (real ranks: `tests/real`)."""

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from planner.schema import Plan, PlanBody
from runtime_client.apply import apply_decisions, apply_plan
from runtime_client.errors import MeshMismatch, UnknownModule
from runtime_client.fingerprint import fingerprint
from tests.real.llama import Llama, seeded_llama
from tests.runtime_client.plans import body, checkpointed, decisions, unit

ROOT = unit("")
LAYERS = tuple(unit(f"layers.{index}") for index in range(2))


def small(**sizes: object) -> Llama:
    return seeded_llama(num_blocks=2, width=8, num_heads=2, hidden=11, vocabulary=13, **sizes)


def plan_for(model: nn.Module, units: tuple = (*LAYERS, ROOT), *, shard: int = 4, **fields: object) -> PlanBody:
    return body(decisions(units, shard=shard, **fields), fingerprint=fingerprint(model))


def sharded(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]


def test_shards_in_place_over_a_named_mesh(world: int) -> None:
    model = small()
    applied = apply_plan(model, Plan.of(plan_for(model)), device_type="cpu")
    assert applied.model is model
    assert (tuple(applied.mesh.shape), applied.mesh.mesh_dim_names) == ((4,), ("shard",))
    assert sharded(model) == ["", "layers.0", "layers.1"]
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())


def test_hybrid_mesh_replicates_the_outer_dimension(world: int) -> None:
    model = small()
    applied = apply_plan(model, plan_for(model, shard=2, replicate=2), device_type="cpu")
    assert (tuple(applied.mesh.shape), applied.mesh.mesh_dim_names) == ((2, 2), ("replicate", "shard"))
    assert cast(DTensor, model.head.weight).placements == (Replicate(), Shard(0))


def test_units_of_one_mesh_share_it(world: int) -> None:
    model = small()
    pairs = {"mesh": {"replicate": 2, "shard": 2}}
    units = (*(unit(f"layers.{index}", **pairs) for index in range(2)), ROOT)
    applied = apply_plan(model, plan_for(model, units), device_type="cpu")
    modules = (*model.layers, model)
    groups = [cast(FSDPModule, module)._get_fsdp_state()._fsdp_param_group for module in modules]
    first, second, root = (group.mesh_info.mesh for group in groups if group is not None)
    assert first is second
    assert (tuple(first.shape), first.mesh_dim_names) == ((2, 2), ("replicate", "shard"))
    assert root is applied.mesh
    assert tuple(root.shape) == (4,)


def test_takes_a_mesh_of_the_trainer(world: int) -> None:
    model = small()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    assert apply_plan(model, plan_for(model, shard=2, replicate=2), mesh=mesh).mesh is mesh


def test_device_type_is_the_cpu_where_there_is_no_accelerator(world: int) -> None:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        pytest.skip("this machine has an accelerator")
    model = small()
    assert apply_plan(model, plan_for(model)).mesh.device_type == "cpu"


def test_meta_model_stays_on_meta(world: int) -> None:
    with torch.device("meta"):
        model = small()
    apply_plan(model, plan_for(model), device_type="cpu")
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu")


def test_tied_parameters_in_one_unit(world: int) -> None:
    for units in ((*LAYERS, ROOT), (*LAYERS, unit("embedding", "head"), ROOT)):
        model = small(tied=True)
        apply_plan(model, plan_for(model, units), device_type="cpu")
        assert model.head.weight is model.embedding.weight


def test_layer_that_is_used_twice(world: int) -> None:
    model = small()
    model.layers[1] = model.layers[0]
    apply_plan(model, plan_for(model, (LAYERS[0], ROOT)), device_type="cpu")
    assert model.layers[1] is model.layers[0]


def test_layer_that_is_used_twice_is_checkpointed_twice(world: int) -> None:
    model = small()
    model.layers[1] = model.layers[0]
    plan = plan_for(model, (LAYERS[0], ROOT), activations=checkpointed("layers.0"))
    apply_plan(model, plan, device_type="cpu")
    assert isinstance(model.layers[1], CheckpointWrapper)
    assert model.layers[1] is model.layers[0]


def test_checkpointed_block_becomes_the_unit_as_a_whole(world: int) -> None:
    model = small()
    apply_plan(model, plan_for(model, activations=checkpointed("layers.1")), device_type="cpu")
    assert isinstance(model.layers[1], CheckpointWrapper)
    assert sharded(model) == ["", "layers.0", "layers.1"]


def wrap(model: Llama) -> None:
    model.layers[0] = checkpoint_wrapper(model.layers[0])


def compile_(model: Llama) -> None:
    model.layers[0] = torch.compile(model.layers[0], backend="eager")


def wrap_and_compile(model: Llama) -> None:
    wrap(model)
    compile_(model)


@pytest.mark.parametrize("change", [wrap, compile_, wrap_and_compile])
def test_wrappers_are_seen_through(world: int, change: Callable[[Llama], None]) -> None:
    model = small()
    activations = () if change is compile_ else checkpointed("layers.0")
    units = (unit("layers.0.attention"), *LAYERS, ROOT)
    plan = plan_for(model, units, activations=activations)
    change(model)
    outer = model.layers[0]
    apply_plan(model, plan, device_type="cpu")
    assert model.layers[0] is outer
    assert isinstance(outer, FSDPModule)
    wrappers = [module for module in model.modules() if isinstance(module, CheckpointWrapper)]
    assert len(wrappers) == len(activations)


def test_compiled_root(world: int) -> None:
    model = small()
    plan = plan_for(model)
    compiled = torch.compile(model, backend="eager")
    apply_plan(compiled, plan, device_type="cpu")
    assert isinstance(compiled, FSDPModule)


def state(module: nn.Module) -> Any:
    return cast(FSDPModule, module)._get_fsdp_state()


def test_reshard_is_handed_on_as_it_is(world: int) -> None:
    model = small()
    units = (
        unit("embedding", reshard_after_forward=True),
        unit("layers.0", reshard_after_forward=False),
        unit("layers.1", reshard_after_forward=2),
        ROOT,
    )
    apply_plan(model, plan_for(model, units), device_type="cpu")
    meshes = [
        state(module)._fsdp_param_group.post_forward_mesh_info
        for module in (model.embedding, model.layers[0], model.layers[1], model)
    ]
    assert [mesh and tuple(mesh.mesh.shape) for mesh in meshes] == [(4,), None, (2, 2), (4,)]
    assert state(model)._auto_reshard_after_forward is True
    assert state(model.layers[0])._auto_reshard_after_forward is False


def test_prefetch_lists_are_handed_on_in_order(world: int) -> None:
    model = small()
    units = (
        unit("layers.0", forward_prefetch=("layers.1", "norm")),
        unit("layers.1", backward_prefetch=("layers.0",)),
        unit("norm", "head", backward_prefetch=("layers.1", "layers.0")),
        unit("", forward_prefetch=("layers.0",)),
    )
    apply_plan(model, plan_for(model, units), device_type="cpu")
    first, second, last = map(state, (model.layers[0], model.layers[1], model.norm))
    assert first._states_to_forward_prefetch == [second, last]
    assert second._states_to_backward_prefetch == [first]
    assert second._states_to_forward_prefetch == []
    assert last._states_to_backward_prefetch == [second, first]
    assert state(model)._states_to_forward_prefetch == [first]


def test_precision_and_knobs(world: int) -> None:
    model = small()
    plan = plan_for(
        model,
        param_dtype="bfloat16",
        reduce_dtype="float32",
        output_dtype="float16",
        cast_forward_inputs=False,
        runtime={"reduce_scatter_max_input_buffers": 3, "separate_reduce_scatter_group": True},
    )
    apply_plan(model, plan, device_type="cpu")
    for module in (model, model.layers[0]):
        policy, group = state(module)._mp_policy, state(module)._fsdp_param_group
        assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
        assert policy.output_dtype == (torch.float16 if module is model else None)
        assert policy.cast_forward_inputs is False
        assert group.reduce_scatter_max_input_buffers == 3
        assert group.mesh_info.reduce_scatter_process_group is not None


def test_decisions_without_a_plan(world: int) -> None:
    model = small()
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
    made = decisions((*LAYERS, ROOT), shard=4)
    assert apply_decisions(model, made, mesh).decisions == made
    assert sharded(model) == ["", "layers.0", "layers.1"]


def test_decisions_without_a_plan_are_checked_too(world: int) -> None:
    model = small()
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
    with pytest.raises(MeshMismatch, match=r"decisions\.mesh is"):
        apply_decisions(model, decisions((*LAYERS, ROOT), shard=2), mesh)
    with pytest.raises(UnknownModule, match=r"layers\.7"):
        apply_decisions(model, decisions((unit("layers.7"), ROOT), shard=4), mesh)
    assert sharded(model) == []


def per_micro_batch(model: nn.Module, plan: PlanBody, read: Callable[[], object]) -> list[object]:
    """What `read` sees in each micro-batch of the plan, and before the first."""
    applied = apply_plan(model, plan, device_type="cpu")
    seen = [read()]
    for index in range(plan.decisions.num_micro_batches):
        applied.begin_micro_batch(index)
        seen.append(read())
    return seen


def test_micro_batches_are_counted(world: int) -> None:
    model = small()
    applied = apply_plan(model, plan_for(model, num_micro_batches=3), device_type="cpu")
    with pytest.raises(IndexError, match="micro-batch 3 of a plan with 3"):
        applied.begin_micro_batch(3)


@pytest.mark.parametrize(
    ("sync", "expected"),
    [
        ("every_micro_batch", [(True, True)] * 4),
        ("last_micro_batch", [(True, True), (False, False), (False, False), (True, True)]),
        ("all_reduce_on_last_micro_batch", [(True, True), (True, False), (True, False), (True, True)]),
    ],
)
def test_micro_batches_reduce_when_the_plan_says_so(world: int, sync: str, expected: list) -> None:
    model = small()
    groups = lambda: [state(module)._fsdp_param_group for module in (model, model.layers[0])]  # noqa: E731
    plan = plan_for(model, shard=2, replicate=2, num_micro_batches=3, runtime={"gradient_sync": sync})
    seen = per_micro_batch(model, plan, lambda: [(g.reduce_grads, g.all_reduce_grads) for g in groups()])
    assert seen == [[pair, pair] for pair in expected]
    assert state(model)._state_ctx.is_last_backward, "every micro-batch ends with its own final callback"


def test_units_stay_gathered_between_micro_batches_where_the_plan_says_so(world: int) -> None:
    model = small()
    units = (unit("layers.0.attention"), unit("layers.0", reshard_after_backward=False), LAYERS[1], ROOT)
    modules = (model.layers[0].attention, model.layers[0], model.layers[1], model)
    seen = per_micro_batch(
        model,
        plan_for(model, units, num_micro_batches=3),
        lambda: [state(module)._fsdp_param_group.reshard_after_backward for module in modules],
    )
    everywhere, but_one = [True] * 4, [True, False, True, True]
    assert seen == [everywhere, but_one, but_one, everywhere]


def test_unused_parameters_and_the_post_optimizer_event(world: int) -> None:
    model = small()
    runtime = {"reduce_scatter_unused_params": True, "post_optimizer_event": True}
    applied = apply_plan(model, plan_for(model, runtime=runtime), device_type="cpu")
    assert state(model.layers[0])._fsdp_param_group.reduce_scatter_unused_params
    assert state(model)._state_ctx.post_optim_event is None
    applied.after_optimizer_step()
    assert state(model)._state_ctx.post_optim_event is not None


def test_without_the_knob_no_event_is_handed_over(world: int) -> None:
    model = small()
    applied = apply_plan(model, plan_for(model), device_type="cpu")
    applied.after_optimizer_step()
    assert state(model)._state_ctx.post_optim_event is None
    assert not state(model)._fsdp_param_group.reduce_scatter_unused_params


def test_offload_is_by_unit_and_runs_on_the_host(world: int) -> None:
    model = small()
    units = (unit("layers.0", parameter_tier="host", optimizer_tier="host"), LAYERS[1], ROOT)
    apply_plan(model, plan_for(model, units), device_type="cpu")
    policies = [state(module)._fsdp_param_group.offload_policy for module in (model.layers[0], model.layers[1])]
    assert [isinstance(policy, CPUOffloadPolicy) for policy in policies] == [True, False]
    model(torch.zeros(2, 4, dtype=torch.long)).sum().backward()
    assert model.layers[0].attention.q.weight.grad is not None


def test_parameters_are_sharded_on_the_dimensions_listed(world: int) -> None:
    model = small(tied=True)
    dims = tuple({"parameter": name, "dim": 1} for name in ("head.weight", "layers.1.attention.q.weight"))
    apply_plan(model, plan_for(model, shard_dims=dims), device_type="cpu")
    assert model.head.weight is model.embedding.weight
    placements = {name: cast(DTensor, p).placements for name, p in model.named_parameters()}
    on_columns = {name for name, (placement,) in placements.items() if placement == Shard(1)}
    assert on_columns == {"embedding.weight", "layers.1.attention.q.weight"}


def test_selective_checkpointing_recomputes_all_but_the_named_operations(world: int) -> None:
    ran = {}
    for policy in ("full", "selective"):
        model = small()
        saved = ("aten.mm.default",) if policy == "selective" else ()
        activations = tuple({"module": f"layers.{i}", "policy": policy, "saved_ops": saved} for i in range(2))
        apply_plan(model, plan_for(model, activations=activations), device_type="cpu")
        loss = model(torch.zeros(2, 4, dtype=torch.long)).sum()
        with OperationCounter() as counter:
            loss.backward()
        ran[policy] = counter.counts
    products = 2 * 6  # the last one of a block is not needed, so the recomputation stops before it
    assert ran["full"]["aten.mm.default"] - ran["selective"]["aten.mm.default"] == products
    assert ran["full"]["aten.silu.default"] == ran["selective"]["aten.silu.default"] == 2


class OperationCounter(TorchDispatchMode):
    """Counts what the dispatcher sees."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))
