"""What FSDP2 of each torch release can do, and where it behaves otherwise than the release that is modelled.

Read from the releases themselves, `torch/distributed/fsdp/_fully_shard` of torch 2.11.0, 2.12.0 and 2.13.0. To what
extent their programs differ was recorded: FSDP2 of each release in the dry runs of `benchmarks/program_matrix.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

from planner.schema import (
    ClientFeature,
    Decisions,
    DType,
    GradientSync,
    ModelDescription,
    StateTier,
    UnitPlan,
    UnknownName,
)
from planner.schema.versions import release_of

RELEASES = ("2.11", "2.12", "2.13")
"""Known releases, oldest first."""
MODELLED = RELEASES[-1]
"""The release whose program is predicted (docs/model.md)."""


INTEGERS = frozenset({DType.INT64, DType.INT32, DType.INT16, DType.INT8, DType.UINT8, DType.BOOL})
"""Element types that have no gradients, and that mixed precision leaves alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Something that a plan can ask of FSDP2."""

    since: str
    """First release that has it, of those known."""
    source: str
    """File and name in `torch/distributed/fsdp/_fully_shard`."""


KNOBS: Mapping[str, Knob] = MappingProxyType(
    {
        "hybrid_mesh": Knob(since="2.11", source="_fsdp_common.py: HSDPMeshInfo"),
        "unit_mesh": Knob(since="2.11", source="_fully_shard.py: fully_shard(mesh)"),
        "grouped_units": Knob(since="2.11", source="_fully_shard.py: fully_shard(list)"),
        "reshard_after_forward": Knob(since="2.11", source="_fully_shard.py: fully_shard"),
        "reshard_after_forward_ranks": Knob(since="2.11", source="_fsdp_init.py: _get_post_forward_mesh_info"),
        "reshard_after_backward": Knob(since="2.11", source="_fully_shard.py: set_reshard_after_backward"),
        "prefetch": Knob(since="2.11", source="_fully_shard.py: set_modules_to_forward_prefetch, .._backward_.."),
        "parameter_tier_host": Knob(since="2.11", source="_fsdp_api.py: CPUOffloadPolicy"),
        "shard_dims": Knob(since="2.11", source="_fully_shard.py: fully_shard(shard_placement_fn)"),
        "gradient_sync_last_micro_batch": Knob(since="2.11", source="_fully_shard.py: set_requires_gradient_sync"),
        "gradient_sync_all_reduce_on_last": Knob(since="2.11", source="_fully_shard.py: set_requires_all_reduce"),
        "post_optimizer_event": Knob(since="2.11", source="_fully_shard.py: set_post_optim_event"),
        "float16_reduction": Knob(since="2.11", source="_fsdp_collectives.py: _get_gradient_divide_factors"),
        "integer_parameters": Knob(since="2.12", source="_fsdp_param.py: FSDPParam._init_sharded_param"),
        "reduce_scatter_max_input_buffers": Knob(
            since="2.13", source="_fully_shard.py: set_reduce_scatter_max_input_buffers"
        ),
        "separate_reduce_scatter_group": Knob(
            since="2.13", source="_fully_shard.py: set_separate_reduce_scatter_group"
        ),
        "reduce_scatter_unused_params": Knob(
            since="2.13", source="_fully_shard.py: set_reduce_scatter_unused_params"
        ),
    }
)
"""Read-only: what decisions can use."""

_FEATURES = {
    ClientFeature.REDUCE_SCATTER_BUFFERS: "reduce_scatter_max_input_buffers",
    ClientFeature.SEPARATE_REDUCE_SCATTER_GROUP: "separate_reduce_scatter_group",
    ClientFeature.RESHARD_INTEGER: "reshard_after_forward_ranks",
    ClientFeature.OFFLOAD: "parameter_tier_host",
}
"""Features of a client that need a knob of FSDP2; the others need nothing of it that a known release lacks."""


class Effect(StrEnum):
    """What a difference between releases changes."""

    BYTES = "bytes"
    EDGES = "edges"
    VALUES = "values"
    ERRORS = "errors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A behaviour of some releases that is not that of the modelled one."""

    releases: tuple[str, ...]
    behaviour: str
    effects: tuple[Effect, ...]
    handling: str
    """What this planner does about it."""
    source: str


DIFFERENCES: Mapping[str, Difference] = MappingProxyType(
    {
        "reduce_input_kept_beside_the_next": Difference(
            releases=("2.12",),
            behaviour=(
                "a loop variable of post-backward holds the last reduce-scatter input that it waited for until it "
                "returns, so that the input of the unit before lives beside that of this unit"
            ),
            effects=(Effect.BYTES,),
            handling="predicted as 2.13 and noted in the plan, with the most bytes that it can add",
            source="_fsdp_param_group.py: post_backward",
        ),
        "units_without_gradients_do_not_wait": Difference(
            releases=("2.11",),
            behaviour=(
                "post-backward of a unit without any gradient returns before it waits for the last reduce-scatter, "
                "whose input so lives until a unit with gradients comes"
            ),
            effects=(Effect.BYTES, Effect.EDGES),
            handling="predicted as 2.13 and noted in the plan where a unit has a backward but no gradients",
            source="_fsdp_param_group.py: post_backward",
        ),
        "finalize_waits_unit_by_unit": Difference(
            releases=("2.11", "2.12"),
            behaviour=(
                "the final callback waits for the reduction of each unit in turn, not for all at the first; what "
                "runs in the callback itself may start earlier, the end is the same"
            ),
            effects=(Effect.EDGES,),
            handling="predicted as 2.13: never earlier, and the same bytes",
            source="_fsdp_param_group.py: finalize_backward",
        ),
        "recomputation_casts_nothing": Difference(
            releases=("2.11", "2.12"),
            behaviour="a unit that runs again inside a checkpointed module casts neither inputs nor outputs",
            effects=(Effect.VALUES, Effect.ERRORS),
            handling="predicted as 2.13 and noted in the plan where a checkpointed module holds units",
            source="_fsdp_state.py: _pre_forward, _post_forward",
        ),
        "grouped_units_cast_only_the_ends": Difference(
            releases=("2.11", "2.12"),
            behaviour="of a unit of several modules only the first casts its inputs, and only the last its output",
            effects=(Effect.VALUES, Effect.ERRORS),
            handling="predicted as 2.13: modules that follow each other pass on param_dtype in both",
            source="_fsdp_state.py: _register_group_forward_hooks",
        ),
        "grouped_units_run_whole": Difference(
            releases=("2.11", "2.12"),
            behaviour="a unit of several modules is not resharded, nor gathered in backward, unless all run",
            effects=(Effect.BYTES, Effect.ERRORS),
            handling="none needed: units of a plan run whole",
            source="_fsdp_state.py: _force_complete_incomplete_states",
        ),
        "integer_parameters_fail": Difference(
            releases=("2.11",),
            behaviour="fully_shard makes sharded parameters that require grad, which torch refuses for integers",
            effects=(Effect.ERRORS,),
            handling="refused",
            source="_fsdp_param.py: FSDPParam._init_sharded_param",
        ),
        "tied_parameters_train_apart": Difference(
            releases=("2.11",),
            behaviour="parameters tied across units train apart, without an error",
            effects=(Effect.VALUES,),
            handling="refused in a plan and before it is applied, whatever the release",
            source="_fsdp_state.py: _validate_no_duplicate_params",
        ),
        "tensors_in_dataclasses_have_no_hooks": Difference(
            releases=("2.11",),
            behaviour="tensors inside a dataclass that pytree does not know get no pre- and post-backward hooks",
            effects=(Effect.ERRORS,),
            handling="none: a description does not say how modules pack what they take and return",
            source="_fsdp_param_group.py: _register_post_backward_hook",
        ),
    }
)
"""Read-only: where older releases do otherwise.

What has no entry is the same in all: lifetimes of gather and reduce buffers, HSDP's all-reduce buffers held to the
end of backward, shard degree 1, AVG and PREMUL_SUM reductions, integer resharding, `set_unshard_in_backward` and
`set_force_sum_reduction_for_comms`.
"""


def supported(knob: str, version: str) -> bool:
    """Whether FSDP2 of a torch version has a knob of `KNOBS`.

    Raises:
        UnknownName: no such knob.
        ValueError: `version` is not a version.
    """
    if knob not in KNOBS:
        raise UnknownName("FSDP2 knob", knob, list(KNOBS))
    return _is_at_least(version, KNOBS[knob].since)


@lru_cache(maxsize=256)
def supports_feature(feature: ClientFeature, version: str) -> bool:
    """Whether FSDP2 of a torch version has what a client needs for a feature."""
    return feature not in _FEATURES or supported(_FEATURES[feature], version)


def differences(version: str) -> dict[str, Difference]:
    """What FSDP2 of a torch version does otherwise than the modelled release."""
    release = ".".join(map(str, release_of(version)[:2]))
    return {name: entry for name, entry in DIFFERENCES.items() if release in entry.releases}


def used_knobs(decisions: Decisions, model: ModelDescription | None = None) -> Iterator[tuple[str, str]]:
    """`(path, knob)` of all that decisions ask of FSDP2, and that applying them to the model needs."""
    for index, unit in enumerate(decisions.units):
        yield from _unit_knobs(f"decisions.units[{index}]", unit, decisions.mesh_of(unit).shard)
    yield from _global_knobs(decisions)
    if model is not None:
        yield from _model_knobs(model)


def required_torch(decisions: Decisions, model: ModelDescription | None = None) -> str:
    """PEP 440 specifier of the releases that have every knob that decisions use."""
    needed = [KNOBS[knob].since for _, knob in used_knobs(decisions, model)]
    return ">=" + max([RELEASES[0], *needed], key=release_of)


def _unit_knobs(path: str, unit: UnitPlan, shard: int) -> Iterator[tuple[str, str]]:
    for field, knob, used in (
        ("modules", "grouped_units", len(unit.modules) > 1),
        ("mesh", "unit_mesh", unit.mesh is not None),
        ("mesh", "hybrid_mesh", unit.mesh is not None and unit.mesh.replicate > 1),
        ("reshard_after_forward", "reshard_after_forward", unit.reshard_after_forward is not None),
        ("reshard_after_forward", "reshard_after_forward_ranks", _is_partial(unit, shard)),
        ("reshard_after_backward", "reshard_after_backward", not unit.reshard_after_backward),
        ("forward_prefetch", "prefetch", bool(unit.forward_prefetch)),
        ("backward_prefetch", "prefetch", bool(unit.backward_prefetch)),
        ("parameter_tier", "parameter_tier_host", unit.parameter_tier is StateTier.HOST),
    ):
        if used:
            yield f"{path}.{field}", knob


def _global_knobs(decisions: Decisions) -> Iterator[tuple[str, str]]:
    runtime, sync = decisions.runtime, decisions.runtime.gradient_sync
    for path, knob, used in (
        ("mesh.replicate", "hybrid_mesh", decisions.mesh.replicate > 1),
        ("reduce_dtype", "float16_reduction", _reduced_in(decisions) is DType.FLOAT16),
        ("shard_dims", "shard_dims", bool(decisions.shard_dims)),
        ("runtime.gradient_sync", "gradient_sync_last_micro_batch", sync is GradientSync.LAST_MICRO_BATCH),
        ("runtime.gradient_sync", "gradient_sync_all_reduce_on_last", sync is GradientSync.ALL_REDUCE_ON_LAST),
    ):
        if used:
            yield f"decisions.{path}", knob
    for field, used in (
        ("reduce_scatter_max_input_buffers", runtime.reduce_scatter_max_input_buffers > 1),
        ("separate_reduce_scatter_group", runtime.separate_reduce_scatter_group),
        ("reduce_scatter_unused_params", runtime.reduce_scatter_unused_params),
        ("post_optimizer_event", runtime.post_optimizer_event),
    ):
        if used:
            yield f"decisions.runtime.{field}", field


def _model_knobs(model: ModelDescription) -> Iterator[tuple[str, str]]:
    for name, parameter in model.iter_parameters():
        if parameter.dtype in INTEGERS:
            yield f"model parameter {name!r}", "integer_parameters"


def _is_partial(unit: UnitPlan, shard: int) -> bool:
    ranks = unit.reshard_after_forward
    return not isinstance(ranks, bool) and ranks is not None and 1 < ranks < shard


def _reduced_in(decisions: Decisions) -> DType | None:
    return decisions.reduce_dtype or decisions.param_dtype


def _is_at_least(version: str, release: str) -> bool:
    return release_of(version)[:2] >= release_of(release)
