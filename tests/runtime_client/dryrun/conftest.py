"""Decisions for the small Llama, and dry runs of it in a process of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Decisions,
    MeshPlan,
    RuntimeKnobs,
    ShardDim,
    StateTier,
    UnitPlan,
)
from runtime_client.dryrun import DryRunJob

LLAMA = Path(__file__).with_name("llama.py")


def make_decisions(
    num_blocks: int = 3,
    *,
    mesh: tuple[int, int] = (1, 64),
    reshard: bool | int | None = None,
    root_reshard: bool | None = None,
    prefetch: int = 0,
    mixed: bool = False,
    checkpointed: int = 0,
    grouped: bool = False,
    own_embedding: bool = False,
    num_micro_batches: int = 1,
    output_dtype: str | None = None,
    reduce_dtype: str | None = None,
    saved_ops: tuple[str, ...] = (),
    on_host: tuple[str, ...] = (),
    kept_after_backward: tuple[str, ...] = (),
    inner: tuple[str, ...] = (),
    shard_dims: tuple[str, ...] = (),
    **runtime: Any,
) -> Decisions:
    """`checkpointed`: so many first blocks, selectively with `saved_ops`; `inner`: units inside the blocks.

    `on_host` and `kept_after_backward` name first modules of units, `shard_dims` parameters for dimension 1.
    """
    names = [f"layers.{index}" for index in range(num_blocks)]
    units = [UnitPlan(modules=(f"{name}.{path}",)) for name in names for path in inner]
    units += [
        UnitPlan(
            modules=(name,),
            reshard_after_forward=reshard,
            forward_prefetch=tuple(names[index + 1 : index + 1 + prefetch]),
            backward_prefetch=tuple(reversed(names[max(0, index - prefetch) : index])),
        )
        for index, name in enumerate(names)
    ]
    units += [UnitPlan(modules=("embedding",), reshard_after_forward=reshard)] * own_embedding
    units += [UnitPlan(modules=("norm", "head"), reshard_after_forward=reshard)] * grouped
    units.append(UnitPlan(modules=("",), reshard_after_forward=root_reshard if root_reshard is not None else None))
    policy = ActivationPolicy.SELECTIVE if saved_ops else ActivationPolicy.FULL
    return Decisions(
        mesh=MeshPlan(replicate=mesh[0], shard=mesh[1]),
        units=tuple(_with_knobs(unit, on_host, kept_after_backward) for unit in units),
        activations=tuple(
            ActivationPlan(module=name, policy=policy, saved_ops=saved_ops) for name in names[:checkpointed]
        ),
        param_dtype="bfloat16" if mixed else None,
        reduce_dtype=reduce_dtype or ("float32" if mixed else None),
        output_dtype=output_dtype,
        micro_batch=2,
        num_micro_batches=num_micro_batches,
        runtime=RuntimeKnobs(**runtime),
        shard_dims=tuple(ShardDim(parameter=name, dim=1) for name in shard_dims),
    )


def _with_knobs(unit: UnitPlan, on_host: tuple[str, ...], kept_after_backward: tuple[str, ...]) -> UnitPlan:
    changes: dict[str, Any] = {}
    if unit.modules[0] in on_host:
        changes |= {"parameter_tier": StateTier.HOST, "optimizer_tier": StateTier.HOST}
    if unit.modules[0] in kept_after_backward:
        changes |= {"reshard_after_backward": False}
    return unit.model_copy(update=changes)


@pytest.fixture(scope="session")
def decide() -> Callable[..., Decisions]:
    return make_decisions


@pytest.fixture(scope="session")
def job() -> Callable[..., DryRunJob]:
    def make(
        record: str, decisions: Decisions, *, function: str = "small", sequence: int = 16, **more: Any
    ) -> DryRunJob:
        return DryRunJob(record=record, build=f"{LLAMA}:{function}", decisions=decisions, sequence=sequence, **more)

    return make
