"""What is measured against each other: decisions by hand, FSDP2's defaults, and the plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Decisions,
    MeshPlan,
    UnitPlan,
)

DEFAULT, PLAN, STOCK = "default", "plan", "stock"
CHECKPOINTING = {"all": 1, "every second": 2, "none": 0}
"""Every how many blocks one is checkpointed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration."""

    name: str
    decisions: Decisions
    is_stock: bool = False
    """FSDP2's own collectives on gloo, which wait for every transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What decisions by hand are made for."""

    num_blocks: int
    num_ranks: int
    micro_batch: int
    num_micro_batches: int

    @property
    def blocks(self) -> list[str]:
        """Paths of the blocks."""
        return [f"layers.{index}" for index in range(self.num_blocks)]


def by_hand(shape: Shape, *, prefetch: int = 0, keeps: bool = False, every: int = 0) -> Decisions:
    """One unit a block.

    Args:
        shape: of the model and its batch.
        prefetch: how many units ahead are gathered in both directions; 0 leaves FSDP2's default.
        keeps: `reshard_after_forward=False`.
        every: one of so many blocks is checkpointed; 0 checkpoints none.
    """
    blocks = shape.blocks
    units = [
        UnitPlan(
            modules=(path,),
            reshard_after_forward=not keeps,
            forward_prefetch=tuple(blocks[index + 1 : index + 1 + prefetch]),
            backward_prefetch=tuple(reversed(blocks[max(0, index - prefetch) : index])),
        )
        for index, path in enumerate(blocks)
    ]
    root = UnitPlan(
        modules=("",),
        forward_prefetch=tuple(blocks[:prefetch]),
        backward_prefetch=tuple(reversed(blocks[len(blocks) - prefetch :])) if prefetch else (),
    )
    return Decisions(
        mesh=MeshPlan(shard=shape.num_ranks),
        units=(*units, root),
        activations=tuple(
            ActivationPlan(module=path, policy=ActivationPolicy.FULL)
            for index, path in enumerate(blocks)
            if every and index % every == 0
        ),
        micro_batch=shape.micro_batch,
        num_micro_batches=shape.num_micro_batches,
    )


def grid(shape: Shape) -> Iterator[Arm]:
    """Prefetch by hand one or two units ahead, resharding or not, with three ways to checkpoint."""
    for (checkpointed, every), keeps, prefetch in product(CHECKPOINTING.items(), (False, True), (1, 2)):
        words = [f"prefetch {prefetch}", *(["kept"] if keeps else [])]
        words += [f"{checkpointed} checkpointed"] if every else []
        decisions = by_hand(shape, prefetch=prefetch, keeps=keeps, every=every)
        yield Arm(name=", ".join(words), decisions=decisions)


def defaults(shape: Shape) -> Iterator[Arm]:
    """FSDP2's default knobs, without checkpointing and with all blocks checkpointed."""
    yield Arm(name=DEFAULT, decisions=by_hand(shape))
    yield Arm(name=f"{DEFAULT}, all checkpointed", decisions=by_hand(shape, every=1))
