"""Checks of what a model holds beside its parameters' values, and would lose or crash on once it is sharded."""

from torch import nn

from runtime_client.errors import ParameterHook, SparseGradient, TrainableBuffer
from runtime_client.fingerprint import iter_parameters, unwrapped_name

_HOOKS = {
    "_backward_hooks": "register_hook",
    "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook",
}


def check_training(model: nn.Module) -> None:
    """Refuse what plain FSDP2 takes without a word and trains otherwise, or crashes on in the first backward.

    Raises:
        ParameterHook, SparseGradient, TrainableBuffer: see each.
    """
    for name, parameter in iter_parameters(model):
        for attribute, method in _HOOKS.items():
            if getattr(parameter, attribute, None):
                raise ParameterHook(
                    f"parameter {name!r} has a hook of {method}. fully_shard puts another parameter in its place, "
                    f"and the hook would never run. Call {method} after apply_plan, on the sharded parameter."
                )
    for path, module in model.named_modules():
        where = unwrapped_name(path)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise SparseGradient(
                f"module {where!r} ({type(module).__name__}) has sparse gradients, which FSDP2 cannot reduce. "
                "Build it with sparse=False."
            )
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.requires_grad:
                raise TrainableBuffer(
                    f"buffer {f'{where}.{name}' if where else name!r} requires a gradient, which nothing reduces: "
                    "ranks would drift apart. Make it a parameter, or call requires_grad_(False)."
                )
