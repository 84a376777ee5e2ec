from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from planner.schema import ModelDescription
from runtime_client.describe import TrainingExample, describe
from runtime_client.fingerprint import fingerprint, parameter_lines


def test_wrappers_and_devices_change_nothing(small_llama: Callable[..., nn.Module]) -> None:
    plain = small_llama()
    wrapped = small_llama()
    for index, layer in enumerate(wrapped.layers):
        wrapped.layers[index] = torch.compile(checkpoint_wrapper(layer))
    with torch.device("meta"):
        meta = small_llama()
    assert fingerprint(plain) == fingerprint(wrapped) == fingerprint(meta)


def test_equal_to_the_description(
    small_llama: Callable[..., nn.Module], small_llama_example: Callable[[], TrainingExample]
) -> None:
    model: ModelDescription = describe(small_llama_example, name="small", micro_batch=2, sequence=64)
    assert fingerprint(small_llama()) == model.fingerprint


def test_whatever_matters_changes_it(small_llama: Callable[..., nn.Module]) -> None:
    frozen, half, tied, deeper = small_llama(), small_llama(), small_llama(), small_llama(num_blocks=6)
    frozen.norm.weight.requires_grad_(False)
    half.norm.to(torch.bfloat16)
    tied.head.weight = tied.tokens.weight
    other_class = small_llama()
    other_class.head.__class__ = type("OtherLinear", (nn.Linear,), {})
    variants = [small_llama(), frozen, half, tied, deeper, other_class]
    assert len({fingerprint(module) for module in variants}) == len(variants)


def test_ties_by_storage_and_by_identity() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = nn.Parameter(first.weight.detach())
    by_storage = parameter_lines(nn.ModuleList([first, second]))
    second.weight = first.weight
    assert parameter_lines(nn.ModuleList([first, second])) == by_storage
    assert by_storage == ["0.weight 4x4 float32 grad -", "1.weight 4x4 float32 grad 0.weight"]
