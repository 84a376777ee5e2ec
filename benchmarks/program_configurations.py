"""Configurations of FSDP2 for small models, and the decisions that each stands for."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from benchmarks.small_models import MODELS, SmallModel
from planner.layout.atoms import table_names
from planner.layout.planned import LayoutOptions
from planner.layout.units import UnitPlanner
from planner.program.parts import expanded
from planner.program.units import Partition, partition
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Decisions,
    DType,
    GradientSync,
    Layout,
    MeshPlan,
    ModelDescription,
    OptimizerGroup,
    OptimizerName,
    RuntimeKnobs,
    ShardDim,
    StateTier,
    UnitPlan,
    Workload,
)

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
    ragged: str = "none"
    """Units with ragged layouts: none, second (every second one), all, the root among them."""
    alias: bool = False
    """Gather units with one layout and a backward in place."""
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
        modules = [unit.modules for unit in units if unit.modules != ("",)]
        parts = partition(expanded(model, modules, ()).model, modules)
        layouts = self._layouts(model, parts, units)
        in_place = {parts.units[number].modules for number in parts.with_backward if self.alias}
        return Decisions(
            mesh=MeshPlan(replicate=self.mesh[0], shard=self.mesh[1]),
            units=tuple(
                unit.model_copy(
                    update={
                        "layouts": tuple(layout.name for layout in own),
                        "alias_gathers": len(own) == 1 and unit.modules in in_place,
                    }
                )
                for unit in units
                for own in (layouts.get(unit.modules, ()),)
            ),
            layouts=tuple(layout for unit in units for layout in layouts.get(unit.modules, ())),
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

    def _layouts(
        self, model: ModelDescription, parts: Partition, units: tuple[UnitPlan, ...]
    ) -> dict[tuple[str, ...], tuple[Layout, ...]]:
        """Buffers by the modules of their unit; a unit on one rank has none."""
        every = {"none": 0, "second": 2, "all": 1}[self.ragged]
        meshes = {unit.modules: unit.mesh or MeshPlan(shard=self.mesh[1]) for unit in units}
        found = {}
        for number, unit in enumerate(parts.units):
            shard = meshes[unit.modules].shard
            if not every or number % every or shard == 1 or not unit.parameters:
                continue
            planner = UnitPlanner(
                workload=Workload(
                    micro_batch=1, sequence=1, global_batch=1, optimizer_groups=(OPTIMIZERS[self.optimizer],)
                ),
                tables=table_names(model),
                declared=(),
                options=LayoutOptions(shard_degrees=(shard,)),
                num_ranks=shard,
            )
            found[unit.modules] = tuple(buffer.layout for buffer in planner.plan(unit).buffers)
        return found

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
