"""A model whose blocks have parts, and decisions with units inside blocks.

`embed`, then `layers.0` .. `layers.N-1`, each run `repeats` times, then `head`. A block is `norm`, `attn` and `mlp`
in turn, with a weight `w0` of 8 x 8 each, and may end with code of its own, `glue` or `tail`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Call,
    CallKind,
    CallRole,
    Decisions,
    DType,
    MeshPlan,
    ModelDescription,
    Module,
    Parameter,
    PlanRequest,
    Polynomial,
    Precision,
    RuntimeKnobs,
    SavedTensor,
    ShardDim,
    StateTier,
    TracePoint,
    UnitPlan,
)
from tests.planner.factories import (
    FULL_PRECISION,
    MICRO_BATCH,
    SEQUENCE,
    TREE,
    CallSpec,
    call_kind,
    tiny_cluster,
    tiny_profile,
    tiny_request,
)

PARTS = ("norm", "attn", "mlp")
NESTED_DURATIONS: Mapping[str, tuple[int, int, int]] = {
    "embedding": (100, 200, 100),
    "block": (1_000, 2_000, 900),
    "norm": (100, 200, 80),
    "attn": (100, 200, 80),
    "mlp": (100, 200, 80),
    "glue": (100, 200, 0),
    "tail": (100, 200, 80),
    "head": (100, 200, 100),
}
"""Nanoseconds of forward, backward and recomputation by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What a block is made of."""

    saved: int = 16
    """Bytes that each part saves."""
    full_saved: int = 4
    """Bytes that the block keeps under full checkpointing."""
    has_spare: bool = False
    """A weight `spare.w0` of the same shape that no part uses."""
    end: str = ""
    """`glue` saves nothing, `tail` saves as parts do."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        names = [*PARTS, *(["spare"] if self.has_spare else [])]
        return {f"{name}.w0": (8, 8) for name in names}

    def kinds(self) -> dict[str, CallKind]:
        part = call_kind(CallSpec(shapes=((8, 8),), saved=self.saved, full_saved=2))
        code = {
            "glue": call_kind(CallSpec(kernels=(1, 1, 0)), CallRole.GLUE),
            "tail": call_kind(CallSpec(saved=self.saved), CallRole.GLUE),
        }
        parts = (
            *(Call(path=name, kind=name) for name in PARTS),
            *([Call(path="", kind=self.end)] if self.end else []),
        )
        num, num_saving = len(parts), len(parts) - (self.end == "glue")
        spec = CallSpec(saved=num_saving * self.saved, full_saved=self.full_saved, kernels=(num, num, num - 1))
        whole = call_kind(spec, CallRole.BLOCK)
        order = tuple(f"{name}.w0" for name in reversed(PARTS))
        block = whole.model_copy(update={"gradient_order": order, "parts": parts})
        return {"block": block, **dict.fromkeys(PARTS, part), **code}


def nested_model(
    num_blocks: int = 2,
    *,
    repeats: int = 1,
    block: Block = Block(),
    dtype: DType = DType.FLOAT32,
    root: bool = True,
) -> ModelDescription:
    """See the module docstring; without `root` there are neither `embed` nor `head`."""
    paths = [f"layers.{index}" for index in range(num_blocks)]
    blocks = tuple(Call(path=path, kind="block") for path in paths for _ in range(repeats))
    modules = tuple(Module(path=path, parameters="block") for path in paths)
    weights = tuple(Parameter(name=name, shape=shape, dtype=dtype) for name, shape in block.shapes.items())
    weight = (Parameter(name="w0", shape=(8, 8), dtype=dtype),)
    kinds = block.kinds()
    if root:
        blocks = (Call(path="embed", kind="embedding"), *blocks, Call(path="head", kind="head"))
        modules = (Module(path="embed", parameters="root"), *modules, Module(path="head", parameters="root"))
        kinds["embedding"] = call_kind(CallSpec(shapes=((8, 8),), input_requires_grad=False), CallRole.EMBEDDING)
        kinds["head"] = call_kind(CallSpec(shapes=((8, 8),)), CallRole.HEAD)
    return ModelDescription(
        name="nested",
        parameter_sets={"block": weights, "root": weight},
        modules=modules,
        kinds=kinds,
        calls=blocks,
        tree_sha256=TREE,
        param_dtype=DType.FLOAT32,
        points=(TracePoint(micro_batch=MICRO_BATCH, sequence=SEQUENCE),),
        torch_version="2.13.0",
    )


def nested_request(
    model: ModelDescription | None = None,
    *,
    num_devices: int = 2,
    num_micro_batches: int = 1,
    precision: Precision = FULL_PRECISION,
) -> PlanRequest:
    """A request on one node."""
    return tiny_request(
        model or nested_model(),
        tiny_cluster(num_devices),
        profile=tiny_profile(NESTED_DURATIONS),
        num_micro_batches=num_micro_batches,
        precision=precision,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """How each unit of a block is treated."""

    units: Sequence[str] = ("",)
    """Units of each block: parts, and the empty name for the block itself; inner ones first."""
    reshard: bool | int | None = None
    reshard_after_backward: bool = True
    checkpoint: bool = False
    on_host: bool = False
    dim: int = 0
    """Dimension on which the weights of blocks are sharded."""
    forward_prefetch: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    backward_prefetch: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    replicate: int = 1
    runtime: RuntimeKnobs = field(default_factory=RuntimeKnobs)


def nested_decisions(request: PlanRequest, knobs: Knobs = Knobs()) -> Decisions:
    """Units of every block, then the root, which is on the host when they are."""
    model, workload = request.model, request.workload
    paths = list(dict.fromkeys(call.path for call in model.calls if call.path.startswith("layers.")))
    names = [f"{path}.{unit}" if unit else path for path in paths for unit in knobs.units]
    tier = StateTier.HOST if knobs.on_host else StateTier.DEVICE
    units = [
        UnitPlan(
            modules=(name,),
            reshard_after_forward=knobs.reshard,
            reshard_after_backward=knobs.reshard_after_backward,
            forward_prefetch=knobs.forward_prefetch.get(name, ()),
            backward_prefetch=knobs.backward_prefetch.get(name, ()),
            parameter_tier=tier,
            optimizer_tier=tier,
        )
        for name in names
    ]
    root = UnitPlan(
        modules=("",),
        reshard_after_backward=knobs.reshard_after_backward,
        parameter_tier=tier,
        optimizer_tier=tier,
    )
    mesh = MeshPlan(replicate=knobs.replicate, shard=request.cluster.num_devices // knobs.replicate)
    sharded = [name for name, _ in model.iter_parameters() if name.startswith("layers.")]
    full = [ActivationPlan(module=path, policy=ActivationPolicy.FULL) for path in paths]
    return Decisions(
        mesh=mesh,
        units=(*units, root),
        activations=tuple(full) if knobs.checkpoint else (),
        param_dtype=workload.precision.param_dtype,
        reduce_dtype=workload.precision.reduce_dtype,
        micro_batch=workload.micro_batch,
        num_micro_batches=workload.global_batch // (workload.micro_batch * mesh.num_ranks),
        runtime=knobs.runtime,
        shard_dims=tuple(ShardDim(parameter=name, dim=knobs.dim) for name in sharded) if knobs.dim else (),
    )


def saved(size: int, op: str = "aten.mm") -> tuple[SavedTensor, ...]:
    """One saved tensor."""
    return (SavedTensor(size_bytes=Polynomial(one=size), op=op),)
