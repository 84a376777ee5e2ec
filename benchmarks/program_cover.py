"""Which configurations of FSDP2 are run: every pair of knob values, some drawn ones, and what cannot run."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from benchmarks.program_configurations import OPTIMIZERS, PRECISIONS, Configuration
from benchmarks.small_models import FURTHER, MODELS
from planner.schema import GradientSync

NUM_DRAWN = 70
NUM_RAGGED = 30
KNOBS: dict[str, tuple[Any, ...]] = {
    "model": tuple(model for model in MODELS if model not in FURTHER),
    "mesh": ((1, 8), (1, 2), (1, 64), (1, 1024), (8, 8), (2, 4), (8, 1), (1, 1)),
    "precision": tuple(PRECISIONS),
    "reshard": ("default", "keep", "mixed", "partial", "partial-mixed"),
    "root_reshard": (None, True, False, "partial"),
    "kept_after_backward": ("none", "second", "all"),
    "activations": (
        "none",
        "full",
        "full-second",
        "selective",
        "selective-second",
        "offload",
        "offload-second",
        "full-and-offload",
    ),
    "forward_prefetch": (0, 1, 2, 3),
    "backward_prefetch": (0, 1, 2, 3),
    "root_prefetch": (0, 2),
    "own_embedding": (False, True),
    "tail": ("root", "unit", "units"),
    "inside": ("none", "first", "all"),
    "block_mesh": ("none", "second", "inside"),
    "blocks_per_unit": (1, 2),
    "offload": ("none", "second", "all"),
    "shard_dims": (False, True),
    "reduce_buffers": (1, 2, 3),
    "separate_group": (False, True),
    "unused_params": (False, True),
    "optimizer_event": (False, True),
    "num_micro_batches": (1, 2, 3),
    "gradient_sync": tuple(GradientSync),
    "optimizer": tuple(OPTIMIZERS),
}
"""Values of every knob, FSDP2's default first."""


TYPICAL: tuple[dict[str, Any], ...] = (
    {},
    {"precision": "bf16-fp32", "activations": "full", "forward_prefetch": 2, "mesh": (1, 64)},
    {"precision": "bf16-fp32", "reshard": "mixed", "activations": "selective-second", "mesh": (8, 8)},
    {"precision": "fp32-bf16", "reshard": "partial", "num_micro_batches": 2, "backward_prefetch": 2},
    {"activations": "offload-second", "offload": "second", "mesh": (1, 64), "optimizer": "adamw-fused"},
    {
        "precision": "bf16",
        "gradient_sync": GradientSync.LAST_MICRO_BATCH,
        "num_micro_batches": 3,
        "blocks_per_unit": 2,
        "mesh": (1, 1024),
    },
    {"ragged": "all", "precision": "bf16-fp32", "activations": "full-second"},
)
"""What people train with, for the models that pairs of values leave out."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Configurations that cannot run, or that no plan has, and what runs in their place."""

    reason: str
    holds: Callable[[Configuration], bool]
    changes: dict[str, Any]


EXCLUSIONS = (
    Exclusion(
        "grouped matrix products of torch exist in bfloat16 alone",
        lambda one: one.parts.needs_bfloat16 and PRECISIONS[one.precision][0] is None,
        {"precision": "bf16-fp32"},
    ),
    Exclusion(
        "fully_shard refuses to reshard to a number of ranks that does not divide the shard degree",
        lambda one: one.partial_ranks is None and one.reshard.startswith("partial"),
        {"reshard": "mixed"},
    ),
    Exclusion(
        "fully_shard refuses to reshard to a number of ranks that does not divide the shard degree",
        lambda one: one.partial_ranks is None and one.root_reshard == "partial",
        {"root_reshard": True},
    ),
    Exclusion(
        "FSDP2 never frees what a partially resharded unit without a backward keeps",
        lambda one: one.parts.num_frozen > 0 and one.reshard.startswith("partial"),
        {"reshard": "mixed"},
    ),
    Exclusion(
        "selective checkpointing counts the operations of the forward, and FSDP2 issues more of them when it runs "
        "a unit inside again",
        lambda one: one.inside != "none" and one.activations.startswith("selective"),
        {"inside": "none"},
    ),
    Exclusion(
        "plans do not offload activations of a block with units inside it",
        lambda one: one.inside != "none" and "offload" in one.activations,
        {"inside": "none"},
    ),
    Exclusion(
        "FSDP2 follows the root's backward list once for each tensor that the root returns, and gathers units "
        "again that are done; plans have no such list",
        lambda one: one.parts.returns_encoding and one.root_prefetch > 0,
        {"root_prefetch": 0},
    ),
    Exclusion(
        "the reduction wants gradients of one type: zeros come in that of the parameters, accumulated gradients in "
        "that of the reduction",
        lambda one: one.has_unused_parameters and one.unused_params and one.accumulates_apart,
        {"gradient_sync": GradientSync.EVERY_MICRO_BATCH},
    ),
    Exclusion(
        "a unit that runs several times is one module: FSDP2 counts the modules of a group that have run",
        lambda one: one.parts.is_repeated and one.blocks_per_unit > 1,
        {"blocks_per_unit": 1},
    ),
    Exclusion(
        "FSDP2 reduces zeros for a repeated unit after each of its runs, and plans refuse that",
        lambda one: one.parts.is_repeated and one.unused_params,
        {"unused_params": False},
    ),
    Exclusion(
        "FSDP2 reduces a repeated unit after each of its runs where gradients are accumulated whole, and plans "
        "refuse that",
        lambda one: one.parts.is_repeated and one.accumulates_whole,
        {"gradient_sync": GradientSync.EVERY_MICRO_BATCH},
    ),
    Exclusion(
        "there are no units inside blocks, and so none on another mesh",
        lambda one: one.block_mesh == "inside" and one.inside == "none",
        {"block_mesh": "second"},
    ),
)


def runnable(configuration: Configuration) -> Configuration:
    """The configuration, or what stands in for one that torch refuses."""
    for exclusion in EXCLUSIONS:
        if exclusion.holds(configuration):
            configuration = replace(configuration, **exclusion.changes)
    return configuration


def pairwise_cover(knobs: dict[str, tuple[Any, ...]]) -> list[Configuration]:
    """Few configurations in which every two values of different knobs meet; greedy and deterministic."""
    names = list(knobs)
    open_pairs = {
        ((first, i), (second, j))
        for first, second in itertools.combinations(names, 2)
        for i in range(len(knobs[first]))
        for j in range(len(knobs[second]))
    }
    found = []
    while open_pairs:
        chosen = dict(min(open_pairs))
        for name in names:
            if name not in chosen:
                chosen[name] = max(range(len(knobs[name])), key=lambda i: (_gain(chosen, name, i, open_pairs), -i))
        open_pairs -= set(itertools.combinations([(name, chosen[name]) for name in names], 2))
        found.append(Configuration(**{name: knobs[name][index] for name, index in chosen.items()}))
    return found


def _gain(chosen: dict[str, int], name: str, index: int, open_pairs: set[Any]) -> int:
    order = list(KNOBS)
    pairs = (
        tuple(sorted(((name, index), (other, value)), key=lambda pair: order.index(pair[0])))
        for other, value in chosen.items()
    )
    return sum(pair in open_pairs for pair in pairs)


def drawn(num: int, seed: int = 0) -> list[Configuration]:
    """Configurations with every knob drawn on its own."""
    random = Random(seed)
    return [Configuration(**{name: random.choice(values) for name, values in KNOBS.items()}) for _ in range(num)]


def configurations(num_drawn: int = NUM_DRAWN) -> list[Configuration]:
    """Models as they are, every knob alone on Llama, the pairwise cover, drawn ones, some with ragged layouts.

    Ragged layouts come with and without gathers in place, `FURTHER` models in `TYPICAL` configurations alone.
    """
    single = [Configuration(model=model) for model in KNOBS["model"]]
    ragged = [
        replace(one, ragged="second" if index % 3 else "all", alias=alias, shard_dims=False)
        for index, one in enumerate([*single, *drawn(NUM_RAGGED, seed=1)])
        for alias in (False, True)
    ]
    single += [_alone(name, value) for name, values in KNOBS.items() for value in values]
    further = [Configuration(model=model, **knobs) for model in FURTHER for knobs in TYPICAL]
    every = [*single, *pairwise_cover(KNOBS), *drawn(num_drawn), *ragged, *further]
    return list(dict.fromkeys(map(runnable, every)))


def _alone(name: str, value: Any) -> Configuration:  # noqa: ANN401 - a value of any knob
    """One knob away from the default, over several micro-batches where it says how these differ."""
    more: dict[str, Any] = {}
    if name in ("gradient_sync", "kept_after_backward"):
        more = {"num_micro_batches": 3, "mesh": (2, 4)}
    if name == "block_mesh":
        more = {"num_micro_batches": 3, "mesh": (2, 4), "inside": "first"}
    if name == "unused_params":
        more = {"model": "llama-unused"}
    return Configuration(**(more | {name: value}))
