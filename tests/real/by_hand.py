"""The cases of `test_apply_on_ranks`, sharded by hand: straight FSDP2 code that knows nothing of plans."""

import functools
from collections.abc import Callable

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from tests.real.llama import Llama


def default(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def keep(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    fully_shard(model.layers[0], mesh=mesh, reshard_after_forward=True)
    fully_shard(model.layers[1], mesh=mesh, reshard_after_forward=False)
    fully_shard(model.layers[2], mesh=mesh, reshard_after_forward=True)
    fully_shard(model.layers[3], mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


def hybrid(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (2, num_ranks // 2), mesh_dim_names=("replicate", "shard"))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def unit_meshes(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (2, num_ranks // 2), mesh_dim_names=("replicate", "shard"))
    everyone = init_device_mesh("cpu", (num_ranks,))
    for index, layer in enumerate(model.layers):
        fully_shard(layer.feed_forward, mesh=everyone)
        fully_shard(layer, mesh=everyone if index == 3 else mesh)
    fully_shard(model, mesh=mesh)


def checkpointing(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    model.layers[0] = checkpoint_wrapper(model.layers[0])
    model.layers[2] = checkpoint_wrapper(model.layers[2])
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def prefetch(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    first, second, third, fourth = (fully_shard(layer, mesh=mesh) for layer in model.layers)
    root = fully_shard(model, mesh=mesh)
    root.set_modules_to_forward_prefetch([first, second])
    first.set_modules_to_forward_prefetch([second, third])
    second.set_modules_to_forward_prefetch([third, fourth])
    third.set_modules_to_forward_prefetch([fourth])
    root.set_modules_to_backward_prefetch([fourth, third])
    fourth.set_modules_to_backward_prefetch([third, second])
    third.set_modules_to_backward_prefetch([second, first])
    second.set_modules_to_backward_prefetch([first])


def groups(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    fully_shard(model.embedding, mesh=mesh)
    for layer in model.layers:
        fully_shard(layer.attention, mesh=mesh)
        fully_shard(layer, mesh=mesh)
    fully_shard([model.norm, model.head], mesh=mesh)
    fully_shard(model, mesh=mesh)


def bfloat16(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def float32_outputs(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    root_policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    )
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=root_policy)


def knobs(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    root = fully_shard(model, mesh=mesh)
    root.set_reduce_scatter_max_input_buffers(2)
    root.set_separate_reduce_scatter_group()


def offload(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    for index, layer in enumerate(model.layers):
        policy = CPUOffloadPolicy(pin_memory=False) if index == 1 else OffloadPolicy()
        fully_shard(layer, mesh=mesh, offload_policy=policy)
    fully_shard(model, mesh=mesh)


def other_dims(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    columns = (model.embedding.weight, model.layers[2].attention.q.weight)
    placement = {id(parameter): Shard(1) for parameter in columns}
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, shard_placement_fn=lambda parameter: placement.get(id(parameter)))
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda parameter: placement.get(id(parameter)))


def selective(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    kept = [torch.ops.aten.mm.default]
    contexts = functools.partial(create_selective_checkpoint_contexts, kept)
    for index in (0, 2):
        model.layers[index] = checkpoint_wrapper(model.layers[index], context_fn=contexts)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def float16(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float16)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def unused(model: Llama, num_ranks: int) -> None:
    default(model, num_ranks)
    model.set_reduce_scatter_unused_params(True)


def reshard_to_two(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (num_ranks,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=2)
    fully_shard(model, mesh=mesh)


def everything(model: Llama, num_ranks: int) -> None:
    mesh = init_device_mesh("cpu", (2, num_ranks // 2), mesh_dim_names=("outer", "inner"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    root_policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32,
        output_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    model.layers[1] = checkpoint_wrapper(model.layers[1])
    model.layers[3] = checkpoint_wrapper(model.layers[3])
    first = fully_shard(model.layers[0], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    second = fully_shard(model.layers[1], mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    third = fully_shard(model.layers[2], mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fourth = fully_shard(model.layers[3], mesh=mesh, mp_policy=policy)
    fully_shard([model.norm, model.head], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=root_policy)
    first.set_modules_to_forward_prefetch([second, third])
    second.set_modules_to_forward_prefetch([third, fourth])
    fourth.set_modules_to_backward_prefetch([third, second])
    model.norm.set_modules_to_backward_prefetch([fourth])


SHARD_BY_HAND: dict[str, Callable[[Llama, int], None]] = {
    "default": default,
    "keep": keep,
    "hybrid": hybrid,
    "unit_meshes": unit_meshes,
    "checkpointing": checkpointing,
    "activation_offload": checkpointing,
    "prefetch": prefetch,
    "groups": groups,
    "bfloat16": bfloat16,
    "float32_outputs": float32_outputs,
    "two_micro_batches": default,
    "sync_last_micro_batch": default,
    "all_reduce_last_micro_batch": hybrid,
    "kept_after_backward": default,
    "offload": offload,
    "other_dims": other_dims,
    "selective": selective,
    "float16": float16,
    "unused": unused,
    "knobs": knobs,
    "reshard_to_two": reshard_to_two,
    "everything": everything,
}


def begin_by_hand(case: str, model: Llama, index: int) -> None:
    """Before the first (0) and second (1) micro-batch of a step, where a case has two."""
    match case:
        case "sync_last_micro_batch":
            model.set_requires_gradient_sync(index == 1)
        case "all_reduce_last_micro_batch" | "unit_meshes":
            model.set_requires_all_reduce(index == 1)
        case "kept_after_backward":
            model.layers[1].set_reshard_after_backward(index == 1)
