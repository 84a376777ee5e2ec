"""All of torch that ragged buffers use and that is not public API; it holds for `SUPPORTED_TORCH`.

- `fully_shard` swaps a parameter by `setattr(module, name, parameter)` when the module's class overrides
  `__setattr__`, and reads it back by `getattr` after `Module._apply` (`_fsdp_param.unsafe_setattr_param`,
  `FSDPParam.reset_sharded_param`): `buffer.FlatHolder` lives on that.
- It calls the `post_accumulate_grad` hooks of a sharded parameter once its gradient is reduced (`foreach_reduce`):
  `PlannedBuffer` hands the gradient on from there.
- It copies gradients into the reduce-scatter input by `fsdp::chunk_cat`, and gathered buffers apart by
  `fsdp::split_with_sizes_copy`: `gradient.PlannedGradient` and `gather.GatheredInPlace` take their place.
- Distributed checkpoints ask tensors that have the methods of `torch.distributed._checkpointable` how to write and
  read them: `tensor.RaggedTensor` answers.
- `torch.optim.Muon` collects what it updates in `_init_group`: `optimizers.Muon` puts local matrices there. Those
  that owners update go through its Newton-Schulz iteration and learning rate by themselves.
- What the functions below touch.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import DTensor, Placement
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._ops._math_ops import _NormPartial
from torch.optim import _muon
from torch.utils._foreach_utils import _foreach_supported_types

from planner.schema.versions import satisfies
from runtime_client.ragged.errors import UnsupportedTorch

AnyDTensor = TypeVar("AnyDTensor", bound=DTensor)

SUPPORTED_TORCH = ">=2.11,<2.14"

CHUNK_CAT = torch.ops.fsdp.chunk_cat.default
COPY_IN = torch.ops.fsdp.all_gather_copy_in.default
COPY_OUT = torch.ops.fsdp.split_with_sizes_copy.default
NO_TORCH_FUNCTION = torch._C._disabled_torch_function_impl


def check_torch() -> None:
    """Refuse a torch whose internals nobody has looked at.

    Raises:
        UnsupportedTorch: the installed torch is outside `SUPPORTED_TORCH`.
    """
    installed = str(torch.__version__)
    if not satisfies(installed, SUPPORTED_TORCH):
        raise UnsupportedTorch(
            f"decisions.layouts: ragged layouts rest on internals of torch {SUPPORTED_TORCH}, but {installed} is "
            "installed. Install a version in that range, or plan again without ragged layouts."
        )


def make_dtensor(
    cls: type[AnyDTensor], local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]
) -> AnyDTensor:
    """A DTensor around a local tensor as it is: on whatever device, a view, of whatever size, outside autograd."""
    size = torch.Size(shape)
    strides = tuple(prod(size[dim + 1 :]) for dim in range(len(size)))
    spec = DTensorSpec(mesh, tuple(placements), tensor_meta=TensorMeta(size, strides, local.dtype))
    # a storage offset would become that of the DTensor, which has no storage to count it in
    start = local.new_empty(0) if local.storage_offset() else local
    made = cast(AnyDTensor, DTensor.__new__(cls, start, spec, requires_grad=False))
    made._local_tensor = local
    return made


def part_of_norm(order: float) -> Placement:
    """Placement of local norms that are still to be combined over a mesh dimension."""
    return _NormPartial(order)


def allow_in_lists(tensor_type: type[Tensor]) -> None:
    """Let optimizers choose their implementation on lists for parameters of a tensor type, as DTensor does."""
    if tensor_type not in _foreach_supported_types:
        _foreach_supported_types.append(tensor_type)


def local_of(tensor: Tensor) -> Tensor:
    """The local tensor of a DTensor, outside autograd; any other tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def newton_schulz(matrix: Tensor, coefficients: tuple[float, float, float], num_steps: int, eps: float) -> Tensor:
    """Orthogonalised `matrix`, in bfloat16, as `torch.optim.Muon` does it; a bfloat16 matrix is written to."""
    return _muon._zeropower_via_newtonschulz(matrix, coefficients, num_steps, eps)


def adjusted_muon_lr(lr: float, rule: str | None, shape: torch.Size) -> float:
    """Learning rate of `torch.optim.Muon` for a matrix of this shape."""
    return _muon._adjust_lr(lr, rule, shape)


def all_gather(
    output: Tensor, local: Tensor, group: dist.ProcessGroup, *, async_op: bool = False
) -> dist.Work | None:
    """All-gather into one tensor, by the name that the installed torch does not warn of."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return cast("dist.Work | None", gather(output, local, group=group, async_op=async_op))


def param_groups(module: nn.Module) -> list[Any]:
    """The FSDPParamGroups of a module that went through `fully_shard` (torch 2.13 may have several)."""
    state = cast(FSDPModule, module)._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return [state._fsdp_param_group] if groups is None else list(groups)


def fsdp_param_of(module: nn.Module, sharded: nn.Parameter) -> tuple[Any, Any]:
    """FSDPParamGroup and FSDPParam of a sharded parameter of the module."""
    for group in param_groups(module):
        for fsdp_param in group.fsdp_params:
            if fsdp_param.sharded_param is sharded:
                return group, fsdp_param
    raise AssertionError("the flat parameter is not one of its unit")


def name_in_errors(fsdp_param: Any, name: str) -> None:  # noqa: ANN401
    """What FSDP2 calls the parameter in its own messages."""
    fsdp_param._param_fqn = name


def reduces_unused(group: Any) -> bool:  # noqa: ANN401
    """Whether parameters without a gradient are reduced as zeros (`set_reduce_scatter_unused_params`)."""
    return bool(getattr(group, "reduce_scatter_unused_params", False))


def wait_for_offload(fsdp_param: Any) -> None:  # noqa: ANN401
    """Let the host wait until a reduced gradient on its way to host memory has arrived (torch 2.11)."""
    if fsdp_param.grad_offload_event is not None:
        fsdp_param.grad_offload_event.synchronize()


def free_by(fsdp_param: Any, free: Callable[[], None]) -> Callable[[], None]:  # noqa: ANN401
    """Let `free` decide when the storage of the gathered parameter is freed; returns what frees it."""
    original = cast(Callable[[], None], fsdp_param.free_unsharded_param)
    fsdp_param.free_unsharded_param = free
    return original


def gathered_output(fsdp_param: Any, make: Callable[[], Tensor]) -> Tensor:  # noqa: ANN401
    """What holds the gathered parameter; made at first, as FSDP2 does before its first copy out of a gather."""
    if not fsdp_param.all_gather_outputs:
        fsdp_param.all_gather_outputs = [make()]
    (output,) = fsdp_param.all_gather_outputs
    return cast(Tensor, output)


def alloc_storage(tensor: Tensor) -> None:
    """Give a tensor whose storage was freed its memory back, of the current stream."""
    _fsdp_param.alloc_storage(tensor)


def record_event(group: Any) -> torch.Event:  # noqa: ANN401
    """An event on the current stream of the group's device."""
    event = group.device_handle.Event()
    event.record()
    return cast(torch.Event, event)


def gathers_wait_for(group: Any, event: torch.Event) -> None:  # noqa: ANN401
    """Order all later copy-ins and all-gathers after an event."""
    group._wait_all_gather_streams_on_event(event)


def post_accumulate_grad_hooks(parameter: nn.Parameter) -> Iterator[Callable[[nn.Parameter], None]]:
    """Hooks that a user registered on a parameter, to be called where no autograd engine accumulates."""
    hooks: dict[int, Callable[[nn.Parameter], None]] = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    yield from hooks.values()
