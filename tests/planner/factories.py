"""Small hand-made documents for tests of the planner.

A tiny model is `embed`, `layers.0` .. `layers.N-1`, `norm`, `head` and `(loss)`; each part except the blocks can be
left out. Bytes and durations are constants, so that a test can compute clocks and peaks by hand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.schema import (
    LOSS_PATH,
    ActivationPlan,
    ActivationPolicy,
    Call,
    CallKind,
    CallMeasurement,
    CallRole,
    ClusterDescription,
    CollectiveMeasurement,
    CopyMeasurement,
    CurvePoint,
    Decisions,
    DeviceSheet,
    DType,
    HostRuns,
    LinkSheet,
    Liveness,
    MeshPlan,
    ModelDescription,
    Module,
    Moment,
    NodeGroup,
    OptimizerGroup,
    OptimizerName,
    Parameter,
    PlanRequest,
    Polynomial,
    Precision,
    Profile,
    Region,
    Reserve,
    RuntimeKnobs,
    SavedTensor,
    SharedTensor,
    TracePoint,
    UnitPlan,
    Work,
    Workload,
)

TREE = "sha256:" + "0" * 64
MICRO_BATCH = 1
SEQUENCE = 8
FULL_PRECISION = Precision(param_dtype=None, reduce_dtype=None)
MIXED_PRECISION = Precision(param_dtype=DType.BFLOAT16, reduce_dtype=DType.FLOAT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpec:
    """Bytes and kernels of one call kind; `shapes` are its parameters `w0`, `w1`, ..."""

    shapes: Sequence[tuple[int, ...]] = ()
    saved: int = 0
    forward_live: Sequence[int] = ()
    """Live bytes of each forward moment."""
    backward_live: Sequence[tuple[int, int]] = ()
    """(live bytes, number of gradients that exist) of each backward moment."""
    full_saved: int | None = None
    """Bytes kept under full checkpointing; None when the call cannot be checkpointed."""
    full_backward_live: Sequence[tuple[int, int]] = ()
    after_backward: int = 0
    before_sums: int = 0
    in_sums: Sequence[int] = ()
    kernels: tuple[int, int, int] = (1, 1, 1)
    """Kernels of forward, backward and recomputation."""
    flops: int = 0
    host_sync: bool = False
    requires_grad: bool = True
    input_requires_grad: bool = True
    output_requires_grad: bool = True


BLOCK = CallSpec(shapes=((8, 4),), full_saved=0)
EMBEDDING = CallSpec(shapes=((16, 4),), input_requires_grad=False)
NORM = CallSpec(shapes=((4,),))
HEAD = CallSpec(shapes=((16, 4),))
LOSS = CallSpec()


def call_kind(spec: CallSpec, role: CallRole = CallRole.OTHER) -> CallKind:
    """The kind that a spec describes; one region."""
    works = [
        Work(flops=Polynomial(one=spec.flops), moved_bytes=Polynomial(one=spec.flops), num_kernels=number)
        for number in spec.kernels
    ]
    region = Region(
        dtype=DType.FLOAT32, forward=works[0], backward=works[1], recompute=works[2], host_sync=spec.host_sync
    )
    forward = tuple(Moment(live_bytes=Polynomial(one=live)) for live in spec.forward_live)
    full = None
    if spec.full_saved is not None:
        full = Liveness(saved=_saved(spec.full_saved), forward=forward, backward=_backward(spec.full_backward_live))
    names = tuple(f"w{index}" for index in reversed(range(len(spec.shapes))))
    return CallKind(
        role=role,
        regions=(region,),
        none=Liveness(
            saved=_saved(spec.saved),
            forward=forward,
            backward=_backward(spec.backward_live),
            after_backward=Polynomial(one=spec.after_backward),
            before_sums=Polynomial(one=spec.before_sums),
            in_sums=tuple(Polynomial(one=size) for size in spec.in_sums),
        ),
        full=full,
        gradient_order=names if spec.requires_grad else (),
        input_requires_grad=spec.input_requires_grad,
        output_requires_grad=spec.output_requires_grad,
    )


def _saved(size: int) -> tuple[SavedTensor, ...]:
    return (SavedTensor(size_bytes=Polynomial(one=size), op="aten.mm"),) if size else ()


def _backward(moments: Sequence[tuple[int, int]]) -> tuple[Moment, ...]:
    return tuple(Moment(live_bytes=Polynomial(one=live), num_gradients=gradients) for live, gradients in moments)


def tiny_model(
    num_blocks: int = 2,
    *,
    block: CallSpec = BLOCK,
    embedding: CallSpec | None = EMBEDDING,
    norm: CallSpec | None = NORM,
    head: CallSpec | None = HEAD,
    loss: CallSpec | None = LOSS,
    dtype: DType = DType.FLOAT32,
    tied_head: bool = False,
    shared: tuple[SharedTensor, ...] = (),
    buffers_bytes: int = 0,
    inputs_bytes: Polynomial = Polynomial(),
) -> ModelDescription:
    """`embed`, `layers.*`, `norm`, `head`, `(loss)`; kinds are named embedding, block, norm, head and loss."""
    parts: list[tuple[str, str, CallSpec, CallRole]] = []
    if embedding is not None:
        parts.append(("embed", "embedding", embedding, CallRole.EMBEDDING))
    parts += [(f"layers.{index}", "block", block, CallRole.BLOCK) for index in range(num_blocks)]
    if norm is not None:
        parts.append(("norm", "norm", norm, CallRole.NORM))
    if head is not None:
        parts.append(("head", "head", head, CallRole.HEAD))
    if loss is not None:
        parts.append((LOSS_PATH, "loss", loss, CallRole.LOSS))
    return ModelDescription(
        name="tiny",
        parameter_sets={
            kind: _parameters(spec, dtype, "embed.w0" if tied_head and kind == "head" else None)
            for _, kind, spec, _ in parts
        },
        modules=tuple(Module(path=path, parameters=kind) for path, kind, spec, _ in parts if spec.shapes),
        kinds={kind: call_kind(spec, role) for _, kind, spec, role in parts},
        calls=tuple(Call(path=path, kind=kind) for path, kind, _, _ in parts),
        shared=shared,
        buffers_bytes=buffers_bytes,
        inputs_bytes=inputs_bytes,
        tree_sha256=TREE,
        param_dtype=DType.FLOAT32,
        points=(TracePoint(micro_batch=MICRO_BATCH, sequence=SEQUENCE),),
        torch_version="2.13.0",
    )


def _parameters(spec: CallSpec, dtype: DType, tied_to: str | None) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(name=f"w{index}", shape=shape, dtype=dtype, requires_grad=spec.requires_grad, tied_to=tied_to)
        for index, shape in enumerate(spec.shapes)
    )


DURATIONS: dict[str, tuple[int, int, int]] = {
    "embedding": (10, 20, 10),
    "block": (100, 200, 100),
    "norm": (10, 20, 10),
    "head": (50, 100, 50),
    "loss": (5, 5, 5),
}
"""Nanoseconds of forward, backward and recomputation by kind."""


def tiny_profile(
    durations: Mapping[str, tuple[int, int, int]] | None = None,
    *,
    micro_batch: int = MICRO_BATCH,
    sequence: int = SEQUENCE,
    launch_ns: int = 0,
    collective_latency_ns: int = 0,
    collective_bytes_per_ns: int = 1,
    groups: Sequence[tuple[int, int]] = ((2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (4, 4)),
    copy_bytes_per_s: int = 10**12,
) -> Profile:
    """Measured durations of each kind, and collectives whose time is linear in the size of the full buffer.

    `groups` lists (ranks, nodes) that were measured.
    """
    largest = 2**40
    points = tuple(
        CurvePoint(size_bytes=size, duration_ns=collective_latency_ns + size // collective_bytes_per_ns)
        for size in (0, largest)
    )
    return Profile(
        calls=tuple(
            CallMeasurement(
                kind=kind,
                micro_batch=micro_batch,
                sequence=sequence,
                forward_ns=forward,
                backward_ns=backward,
                recompute_ns=recompute,
            )
            for kind, (forward, backward, recompute) in (durations or DURATIONS).items()
        ),
        collectives=tuple(
            CollectiveMeasurement(collective=collective, num_ranks=ranks, num_nodes=nodes, points=points)
            for collective in ("all_gather", "reduce_scatter", "all_reduce")
            for ranks, nodes in groups
        ),
        copies=(CopyMeasurement(direction="device_to_device", bytes_per_s=copy_bytes_per_s),),
        launch_ns=launch_ns,
        optimizer_parameters_per_s=10**9,
        context_bytes=0,
        communicator_bytes=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """Sheets of the tiny cluster."""

    memory_bytes: int = 2**30
    memory_bytes_per_s: int = 10**12
    flops_per_s: int = 10**12
    link_bytes_per_s: int = 10**9
    link_latency_ns: int = 0
    reserve: Reserve = field(
        default_factory=lambda: Reserve(
            context_bytes=0, communicator_bytes=0, pair_communicator_bytes=0, fragmentation=0.0
        )
    )


def tiny_cluster(
    num_devices: int = 2, *, devices_per_node: int | None = None, spec: ClusterSpec | None = None
) -> ClusterDescription:
    """Equal devices on one node, or on nodes of `devices_per_node`; nothing is reserved."""
    spec = spec or ClusterSpec()
    per_node = devices_per_node or num_devices
    link = LinkSheet(name="link", bytes_per_s=spec.link_bytes_per_s, latency_ns=spec.link_latency_ns)
    device = DeviceSheet(
        name="tiny",
        memory_bytes=spec.memory_bytes,
        memory_bytes_per_s=spec.memory_bytes_per_s,
        flops_per_s={DType.FLOAT32: spec.flops_per_s, DType.BFLOAT16: spec.flops_per_s},
        launch_ns=0,
    )
    return ClusterDescription(
        name="tiny",
        node_groups=(
            NodeGroup(
                num_nodes=num_devices // per_node,
                devices_per_node=per_node,
                device=device,
                host_memory_bytes=2**34,
                host_cores=8,
                intra_node=link,
            ),
        ),
        inter_node=link if num_devices > per_node else None,
        reserve=spec.reserve,
    )


def run_by_host(request: PlanRequest, host_runs: HostRuns) -> PlanRequest:
    """The same on devices whose issuing thread computes."""
    (group,) = request.cluster.node_groups
    assert isinstance(group.device, DeviceSheet)
    group = group.model_copy(update={"device": group.device.model_copy(update={"host_runs": host_runs})})
    cluster = request.cluster.model_copy(update={"node_groups": (group,)})
    return request.model_copy(update={"cluster": cluster})


def tiny_request(
    model: ModelDescription | None = None,
    cluster: ClusterDescription | None = None,
    *,
    profile: Profile | None = None,
    precision: Precision = FULL_PRECISION,
    optimizer: OptimizerName = OptimizerName.ADAMW,
    num_micro_batches: int = 1,
    micro_batch: int = MICRO_BATCH,
    sequence: int = SEQUENCE,
) -> PlanRequest:
    """A request whose global batch is `num_micro_batches` micro-batches on every device."""
    model = model or tiny_model()
    cluster = cluster or tiny_cluster()
    return PlanRequest(
        model=model,
        cluster=cluster,
        workload=Workload(
            micro_batch=micro_batch,
            sequence=sequence,
            global_batch=micro_batch * num_micro_batches * cluster.num_devices,
            precision=precision,
            optimizer_groups=(OptimizerGroup(optimizer=optimizer),),
        ),
        profile=profile or tiny_profile(micro_batch=micro_batch, sequence=sequence),
    )


def tiny_decisions(
    request: PlanRequest,
    *,
    shard: int | None = None,
    replicate: int = 1,
    reshard: bool | int | None = None,
    root_reshard: bool | int | None = None,
    keep: Sequence[str] = (),
    checkpoint: Sequence[str] = (),
    forward_prefetch: int = 0,
    backward_prefetch: int = 0,
    extra_units: Sequence[UnitPlan] = (),
    runtime: RuntimeKnobs | None = None,
) -> Decisions:
    """One unit for each `layers.*` call, then `extra_units`, then the root.

    Args:
        request: what the decisions are for.
        shard: shard degree; the devices divided by `replicate` unless given.
        replicate: replicate degree.
        reshard: `reshard_after_forward` of every block not in `keep`.
        root_reshard: `reshard_after_forward` of the root.
        keep: blocks that stay gathered after forward.
        checkpoint: modules under full checkpointing.
        forward_prefetch: depth of explicit forward prefetch over the blocks; 0 leaves it implicit.
        backward_prefetch: depth of explicit backward prefetch over the blocks.
        extra_units: further units, bottom-up.
        runtime: settings for the whole model.
    """
    blocks = [call.path for call in request.model.calls if call.path.startswith("layers.")]
    units = [
        UnitPlan(
            modules=(path,),
            reshard_after_forward=False if path in keep else reshard,
            forward_prefetch=tuple(blocks[index + 1 : index + 1 + forward_prefetch]),
            backward_prefetch=tuple(reversed(blocks[max(0, index - backward_prefetch) : index])),
        )
        for index, path in enumerate(blocks)
    ]
    precision = request.workload.precision
    workload = request.workload
    mesh = MeshPlan(replicate=replicate, shard=shard or request.cluster.num_devices // replicate)
    return Decisions(
        mesh=mesh,
        units=(*units, *extra_units, UnitPlan(modules=("",), reshard_after_forward=root_reshard)),
        activations=tuple(ActivationPlan(module=path, policy=ActivationPolicy.FULL) for path in checkpoint),
        param_dtype=precision.param_dtype,
        reduce_dtype=precision.reduce_dtype,
        output_dtype=precision.output_dtype,
        cast_forward_inputs=precision.cast_forward_inputs,
        micro_batch=workload.micro_batch,
        num_micro_batches=workload.global_batch // (workload.micro_batch * mesh.num_ranks),
        runtime=runtime or RuntimeKnobs(),
    )
