"""Configurations of FSDP2 for small models: every pair of knob values, and the decisions that each stands for."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

from benchmarks.small_models import MODELS, SmallModel
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Decisions,
    DType,
    GradientSync,
    MeshPlan,
    ModelDescription,
    OptimizerGroup,
    OptimizerName,
    RuntimeKnobs,
    ShardDim,
    StateTier,
    UnitPlan,
)

NUM_DRAWN = 70
PRECISIONS: dict[str, tuple[DType | None, DType | None, DType | None]] = {
    "stored": (None, None, None),
    "bf16-fp32": (DType.BFLOAT16, DType.FLOAT32, None),
    "bf16": (DType.BFLOAT16, None, None),
    "bf16-fp32-out": (DType.BFLOAT16, DType.FLOAT32, DType.FLOAT32),
    "fp32-bf16": (None, DType.BFLOAT16, None),
    "fp32-fp16": (None, DType.FLOAT16, None),
    "bf16-fp16": (DType.BFLOAT16, DType.FLOAT16, None),
}
"""Parameters, reduction, output."""
OPTIMIZERS: dict[str, OptimizerGroup] = {
    "adamw": OptimizerGroup(),
    "adamw-fused": OptimizerGroup(implementation="fused"),
    "adamw-for-loop": OptimizerGroup(implementation="for_loop"),
    "sgd": OptimizerGroup(optimizer=OptimizerName.SGD),
    "sgd-momentum": OptimizerGroup(optimizer=OptimizerName.SGD_MOMENTUM, implementation="for_loop"),
}
KNOBS: dict[str, tuple[Any, ...]] = {
    "model": tuple(MODELS),
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


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One choice for every knob."""

    model: str = "llama"
    mesh: tuple[int, int] = (1, 8)
    """Replicate and shard degree."""
    precision: str = "stored"
    reshard: str = "default"
    """Of blocks: default, keep, partial; mixed keeps every second one."""
    root_reshard: bool | str | None = None
    kept_after_backward: str = "none"
    """Units that stay gathered between micro-batches: none, second (every second one), all, the root among them."""
    activations: str = "none"
    """Of blocks: kept, checkpointed in full, kept for some operations (selective), or offloaded; of all or of every
    second one. The last checkpoints every second one, and offloads the others."""
    forward_prefetch: int = 0
    backward_prefetch: int = 0
    root_prefetch: int = 0
    """Blocks that the root gathers ahead: the first ones in forward, the last ones in backward."""
    own_embedding: bool = False
    tail: str = "root"
    """Norm and head: in the root, one unit, or two units."""
    inside: str = "none"
    """Units inside blocks: none, the first candidate, all."""
    block_mesh: str = "none"
    """Units that are on another mesh of the same ranks: none, every second block, units inside blocks."""
    blocks_per_unit: int = 1
    offload: str = "none"
    """Units in host memory: none, second (every second one), all, the root among them."""
    shard_dims: bool = False
    """Shard matrices on their second dimension where that is possible."""
    reduce_buffers: int = 1
    separate_group: bool = False
    unused_params: bool = False
    optimizer_event: bool = False
    num_micro_batches: int = 1
    gradient_sync: str = GradientSync.EVERY_MICRO_BATCH
    optimizer: str = "adamw"

    @property
    def name(self) -> str:
        """Model, mesh and what differs from the default."""
        others = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if field.name not in ("model", "mesh") and getattr(self, field.name) != field.default
        ]
        return " ".join([self.model, "x".join(map(str, self.mesh)), *others])

    @property
    def parts(self) -> SmallModel:
        """The model."""
        return MODELS[self.model]

    @property
    def has_unused_parameters(self) -> bool:
        """Some trainable parameter gets no gradient."""
        return self.model == "llama-unused"

    @property
    def accumulates_whole(self) -> bool:
        """Micro-batches add to gradients that are not reduced yet."""
        return self.gradient_sync == GradientSync.LAST_MICRO_BATCH and self.num_micro_batches > 1

    @property
    def accumulates_apart(self) -> bool:
        """They do so in another type than that of the parameters."""
        param_dtype, reduce_dtype, _ = PRECISIONS[self.precision]
        return self.accumulates_whole and reduce_dtype not in (None, param_dtype)

    @property
    def other_mesh(self) -> MeshPlan | None:
        """The ranks cut otherwise: in one piece, or in two where that is the plan's mesh; None for one rank."""
        replicate, shard = self.mesh
        if replicate > 1:
            return MeshPlan(shard=replicate * shard)
        return None if shard == 1 else MeshPlan(replicate=2, shard=shard // 2)

    @property
    def partial_ranks(self) -> int | None:
        """A number of ranks that partial resharding may shard to; None where there is none."""
        return _partial_ranks(self.mesh[1])

    def decisions(self, model: ModelDescription) -> Decisions:
        """What is applied and predicted; `model` says what there is to shard and to keep."""
        param_dtype, reduce_dtype, output_dtype = PRECISIONS[self.precision]
        units = tuple(self._placed((*self._units(), self._root())))
        return Decisions(
            mesh=MeshPlan(replicate=self.mesh[0], shard=self.mesh[1]),
            units=units,
            activations=tuple(self._activations(model)),
            param_dtype=param_dtype,
            reduce_dtype=reduce_dtype,
            output_dtype=output_dtype,
            micro_batch=2,
            num_micro_batches=self.num_micro_batches,
            runtime=RuntimeKnobs(
                reduce_scatter_max_input_buffers=self.reduce_buffers,
                separate_reduce_scatter_group=self.separate_group,
                gradient_sync=GradientSync(self.gradient_sync),
                reduce_scatter_unused_params=self.unused_params,
                post_optimizer_event=self.optimizer_event,
            ),
            shard_dims=tuple(self._shard_dims(model, units)) if self.shard_dims else (),
        )

    def _activations(self, model: ModelDescription) -> Iterator[ActivationPlan]:
        """Selective checkpointing keeps what the description offers first; frozen blocks are offered nothing."""
        policy, _, which = self.activations.partition("-")
        every = 2 if which else 1
        if policy in ("full", "offload"):
            for path in self.parts.blocks[::every]:
                yield ActivationPlan(module=path, policy=ActivationPolicy(policy))
            for path in self.parts.blocks[1::2] if which == "and-offload" else ():
                yield ActivationPlan(module=path, policy=ActivationPolicy.OFFLOAD)
        if policy != "selective":
            return
        offered = {call.path: model.kinds[call.kind].selective for call in model.calls}
        for path in [path for path in self.parts.blocks if offered.get(path)][::every]:
            saved_ops = offered[path][0].saved_ops
            yield ActivationPlan(module=path, policy=ActivationPolicy.SELECTIVE, saved_ops=saved_ops)

    def _groups(self) -> list[tuple[str, ...]]:
        size, paths = self.blocks_per_unit, self.parts.blocks
        return [paths[start : start + size] for start in range(0, len(paths), size)]

    def _root(self) -> UnitPlan:
        firsts = [group[0] for group in self._groups()]
        partial = self.root_reshard == "partial"
        return UnitPlan(
            modules=("",),
            reshard_after_forward=self.partial_ranks if partial else self.root_reshard,
            forward_prefetch=tuple(firsts[: self.root_prefetch]),
            backward_prefetch=tuple(firsts[::-1][: self.root_prefetch]),
        )

    def _units(self) -> Iterator[UnitPlan]:
        groups = self._groups()
        firsts = [group[0] for group in groups]
        for path, inner in itertools.product(self.parts.blocks, self._inside()):
            yield UnitPlan(
                modules=(f"{path}.{inner}",), mesh=self.other_mesh if self.block_mesh == "inside" else None
            )
        for index, group in enumerate(groups):
            mesh = self.other_mesh if self.block_mesh == "second" and index % 2 else None
            yield UnitPlan(
                modules=group,
                mesh=mesh,
                reshard_after_forward=self._reshard(index, mesh.shard if mesh else self.mesh[1]),
                forward_prefetch=tuple(firsts[index + 1 : index + 1 + self.forward_prefetch]),
                backward_prefetch=tuple(firsts[max(0, index - self.backward_prefetch) : index][::-1]),
            )
        if self.own_embedding and self.parts.embedding:
            yield UnitPlan(modules=(self.parts.embedding,))
        if self.tail != "root" and self.parts.tail:
            tails = [self.parts.tail] if self.tail == "unit" else [(path,) for path in self.parts.tail]
            yield from (UnitPlan(modules=modules) for modules in tails)

    def _inside(self) -> tuple[str, ...]:
        return self.parts.inside[: {"none": 0, "first": 1, "all": None}[self.inside]]

    def _reshard(self, index: int, shard: int) -> bool | int | None:
        if self.reshard == "keep" or (self.reshard.endswith("mixed") and index % 2):
            return False
        return _partial_ranks(shard) if self.reshard.startswith("partial") else None

    def _placed(self, units: tuple[UnitPlan, ...]) -> Iterator[UnitPlan]:
        for index, unit in enumerate(units):
            changes: dict[str, Any] = {}
            if self.offload == "all" or (self.offload == "second" and index % 2):
                changes |= {"parameter_tier": StateTier.HOST, "optimizer_tier": StateTier.HOST}
            if self.kept_after_backward == "all" or (self.kept_after_backward == "second" and index % 2):
                changes |= {"reshard_after_backward": False}
            yield unit.model_copy(update=changes)

    def _shard_dims(self, model: ModelDescription, units: tuple[UnitPlan, ...]) -> Iterator[ShardDim]:
        """FSDP2 wants even shards of any dimension but the first, and cannot gather them from fewer ranks."""
        modules = {module: unit for unit in units for module in unit.modules}
        for name, parameter in model.iter_parameters():
            owner = max((path for path in modules if _is_below(name, path)), key=len)
            reshard, mesh = modules[owner].reshard_after_forward, modules[owner].mesh
            is_partial = reshard is not None and not isinstance(reshard, bool)
            is_even = len(parameter.shape) > 1 and parameter.shape[1] % (mesh.shard if mesh else self.mesh[1]) == 0
            if is_even and not is_partial and parameter.tied_to is None:
                yield ShardDim(parameter=name, dim=1)


def _partial_ranks(shard: int) -> int | None:
    return next((ranks for ranks in (4, 2) if ranks < shard and not shard % ranks), None)


def _is_below(name: str, module: str) -> bool:
    return not module or name.startswith(module + ".")


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
    """Every model as it is, every knob alone on Llama, the pairwise cover, then drawn ones."""
    single = [Configuration(model=model) for model in MODELS]
    single += [_alone(name, value) for name, values in KNOBS.items() for value in values]
    return list(dict.fromkeys(map(runnable, [*single, *pairwise_cover(KNOBS), *drawn(num_drawn)])))


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
