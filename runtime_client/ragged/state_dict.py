"""State dicts of ragged units: the original names and shapes, whatever is gathered at the moment."""

from typing import cast

from torch import nn
from torch.distributed.fsdp import FSDPModule

from runtime_client.ragged.buffer import PlannedBuffer


def watch_state_dict(unit: nn.Module, buffers: list[PlannedBuffer]) -> None:
    """Make `state_dict` and `load_state_dict` of the modules of a unit reshard it first, as FSDP2's own do.

    `load_state_dict` takes ragged tensors of this or another layout, DTensors and whole tensors, also with
    `assign=True`.
    """

    def reshard(*_: object) -> None:
        cast(FSDPModule, unit).reshard()

    def loaded(*_: object) -> None:
        for buffer in buffers:
            buffer.fsdp_param.reset_sharded_param()

    for module in dict.fromkeys(module for buffer in buffers for slot in buffer.slots for module, _ in slot.owners):
        module.register_state_dict_pre_hook(reshard)  # type: ignore[no-untyped-call]
        module.register_load_state_dict_pre_hook(reshard)  # type: ignore[no-untyped-call]
        module.register_load_state_dict_post_hook(loaded)  # type: ignore[no-untyped-call]
