"""Every knob that a plan can turn, as decisions for a small Llama, and how far the trained weights may be off."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.schema import Decisions, UnitPlan
from tests.real.cases import LAYERS, PLAIN, ROOT, planned
from tests.real.llama import Llama, seeded_llama
from tests.runtime_client.plans import decisions, unit
from tests.runtime_client.ragged.layouts import rows, with_layouts

MICRO_BATCH, SEQUENCE = 2, 12
ANOTHER_ORDER = 5e-7
"""Sums over ranks, micro-batches or meshes are added in another order: a few units in the last place of float32."""
GROUPED = {2: 0.0, 4: ANOTHER_ORDER}
"""Two numbers have one sum; gloo adds four in an order that depends on their place in the buffer."""
NARROW = 1e-4
"""Sums in float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the matrix for each number of ranks."""

    made: Callable[[int], Decisions]
    tolerance: Mapping[int, float] | float = 0.0
    """Largest difference of a weight from the run without a plan after all steps, by ranks; 0 means bit by bit."""
    min_ranks: int = 2
    max_norm: float | None = None
    """Clip the gradients to this norm, and those of the run without a plan by torch's own function."""

    def allowed(self, num_ranks: int) -> float:
        """The tolerance on so many ranks."""
        return self.tolerance if isinstance(self.tolerance, float) else self.tolerance[num_ranks]

    def decisions(self, num_ranks: int) -> Decisions:
        """What the plan decides."""
        return self.made(num_ranks).model_copy(update={"micro_batch": MICRO_BATCH})


def build() -> Llama:
    """The model of all cases."""
    return seeded_llama()


def _as(name: str, **fields: object) -> Case:
    return Case(made=lambda num_ranks: planned(name, num_ranks), **fields)  # type: ignore[arg-type]


def _runtime(*, num_micro_batches: int = 1, units: tuple[UnitPlan, ...] = PLAIN, **knobs: object) -> Case:
    return Case(
        made=lambda n: decisions(units, shard=n, num_micro_batches=num_micro_batches, runtime=knobs),
    )


def _experts() -> tuple[UnitPlan, ...]:
    """Feed-forwards as units of their own, as experts are; each unit gathers the next two, over every boundary.

    A layer begins before the feed-forward inside it, in backward too.
    """
    inner = {layer: f"{layer}.feed_forward" for layer in LAYERS}
    forward = ["embedding", *(name for layer in LAYERS for name in (layer, inner[layer])), "norm"]
    backward = ["norm", *(name for layer in reversed(LAYERS) for name in (layer, inner[layer])), "embedding"]
    modules = ("embedding", *(name for layer in LAYERS for name in (inner[layer], layer)), "norm")

    def after(order: list[str], name: str) -> tuple[str, ...]:
        place = order.index(name)
        return tuple(order[place + 1 : place + 3])

    made = (
        unit(
            *(("norm", "head") if name == "norm" else (name,)),
            forward_prefetch=after(forward, name),
            backward_prefetch=after(backward, name),
        )
        for name in modules
    )
    return (*made, unit("", forward_prefetch=tuple(forward[:2])))


def _ragged(*, alias: bool) -> Case:
    def made(num_ranks: int) -> Decisions:
        return with_layouts(build(), decisions(PLAIN, shard=num_ranks), atom=rows, reverse=True, alias=alias)

    return Case(made=made, tolerance=GROUPED)


def _offload(*paths: str) -> tuple[UnitPlan, ...]:
    tiers = {"parameter_tier": "host", "optimizer_tier": "host"}
    return tuple(unit(*one.modules, **(tiers if one.modules[0] in paths else {})) for one in PLAIN)


CASES: dict[str, Case] = {
    "FSDP2's defaults": _as("default"),
    "2 reduce buffers": _runtime(reduce_scatter_max_input_buffers=2),
    "4 reduce buffers": _runtime(reduce_scatter_max_input_buffers=4),
    "separate reduce group": _runtime(separate_reduce_scatter_group=True),
    "2 reduce buffers, separate group": _as("knobs"),
    "prefetch 2 ahead each way": _as("prefetch"),
    "prefetch over experts and boundaries": Case(made=lambda n: decisions(_experts(), shard=n), tolerance=GROUPED),
    "2 micro-batches": _as("two_micro_batches"),
    "reduce on the last micro-batch": _as("sync_last_micro_batch", tolerance=ANOTHER_ORDER),
    "all-reduce on the last micro-batch": _as("all_reduce_last_micro_batch", tolerance=ANOTHER_ORDER),
    "kept after backward": _as("kept_after_backward"),
    "kept after forward, some": _as("keep"),
    "resharded to 2 ranks": _as("reshard_to_two", min_ranks=4),
    "hybrid mesh": _as("hybrid", tolerance=GROUPED),
    "units with a mesh of their own": _as("unit_meshes", tolerance=ANOTHER_ORDER),
    "units with a mesh of their own, clipped": _as("unit_meshes", tolerance=ANOTHER_ORDER, max_norm=0.05),
    "clipped": _as("default", max_norm=0.05),
    "zeros for unused parameters": _as("unused"),
    "event of the optimizer": _runtime(post_optimizer_event=True),
    "full checkpointing": _as("checkpointing"),
    "selective checkpointing": _as("selective"),
    "activation offload": _as("activation_offload"),
    "one unit in host memory": _as("offload"),
    "all units in host memory": Case(made=lambda n: decisions(_offload(*LAYERS, ""), shard=n)),
    "units in host memory, clipped": Case(made=lambda n: decisions(_offload(*LAYERS[:2]), shard=n), max_norm=0.05),
    "more and smaller units": _as("groups", tolerance=GROUPED),
    "one unit": Case(made=lambda n: decisions((ROOT,), shard=n), tolerance=GROUPED),
    "another dimension": _as("other_dims", tolerance=GROUPED),
    "ragged layout": _ragged(alias=False),
    "ragged layout, gathered in place": _ragged(alias=True),
    "bfloat16": _as("bfloat16"),
    "bfloat16, float32 outputs": _as("float32_outputs"),
    "float16 reduction": _as("float16", tolerance=NARROW),
    "many at once": _as("everything"),
}
