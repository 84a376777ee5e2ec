"""Random small requests for tests of the search: every knob that it decides can pay somewhere.

A model is `embed`, `layers.0` .. `layers.N-1`, `norm`, `head` and the loss, with blocks of one or two kinds. Those
can be frozen, and cut into `ln`, `attn` and `mlp`, of which some `mlp` are large beside all else. Bytes and
nanoseconds are of one order of magnitude, so that memory, links, computation and the CPU each bind in some of the
requests.
"""

from random import Random

from planner.schema import (
    LOSS_PATH,
    AtomRule,
    Call,
    CallKind,
    CallMeasurement,
    CallRole,
    ClientFeature,
    ClusterDescription,
    CollectiveMeasurement,
    CopyMeasurement,
    CurvePoint,
    DeviceSheet,
    DType,
    FlatAtom,
    LinkSheet,
    Liveness,
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
    RowsAtom,
    SavedTensor,
    SearchLimits,
    SelectiveCheckpoint,
    SharedTensor,
    TracePoint,
    Work,
    Workload,
)

SEQUENCE = 8
MICRO_BATCHES = (1, 2)
EXACT = SearchLimits(gap=0.0, deterministic_time=200.0)
SAVED_OPS = (("aten.mm.default",), ("aten._scaled_dot_product_attention.default", "aten.mm.default"))
ATOMS = (RowsAtom(num_rows=2), RowsAtom(num_rows=4), FlatAtom(num_elements=16), FlatAtom(num_elements=48))
PRECISIONS = (
    Precision(param_dtype=None, reduce_dtype=None),
    Precision(param_dtype=DType.BFLOAT16, reduce_dtype=DType.FLOAT32),
    Precision(param_dtype=DType.BFLOAT16, reduce_dtype=None),
    Precision(param_dtype=None, reduce_dtype=DType.BFLOAT16),
)


def random_request(seed: int) -> PlanRequest:
    """An exact search without a limit on memory, for a client that knows some or all features."""
    rng = Random(seed)
    model = _model(rng)
    cluster = _cluster(rng)
    sequences = rng.choice((1, 1, 2, 2, 3))
    return PlanRequest(
        model=model,
        cluster=cluster,
        workload=Workload(
            micro_batch=1,
            sequence=SEQUENCE,
            global_batch=sequences * cluster.num_devices,
            precision=rng.choice(PRECISIONS),
            optimizer_groups=(OptimizerGroup(optimizer=rng.choice((OptimizerName.ADAMW, OptimizerName.SGD))),),
        ),
        profile=_profile(rng, model),
        search=EXACT,
        client_features=None if rng.random() < 0.6 else tuple(f for f in ClientFeature if rng.random() < 0.6),
        micro_batches=(2,) if sequences == 2 and rng.random() < 0.4 else (),
        reduce_dtypes=(rng.choice((DType.BFLOAT16, DType.FLOAT32)),) if rng.random() < 0.2 else (),
        optimizer_implementations=(rng.choice(("fused", "for_loop")),) if rng.random() < 0.2 else (),
    )


def with_rules(request: PlanRequest, rng: Random) -> PlanRequest:
    """Some of the requests: blocks with atoms that even shards may cut, with matrices that Muon updates, or skipped
    by some ranks.

    Muon shards matrices over no more ranks than they have rows, so that a client needs replicas or owners.
    """
    workload = request.workload
    features = ClientFeature if request.client_features is None else request.client_features
    if {ClientFeature.RAGGED_LAYOUT, ClientFeature.MUON_OWNERS} <= {*features} and rng.random() < 0.3:
        rule = AtomRule(parameters="layers.*", atom=rng.choice(ATOMS))
        workload = workload.model_copy(update={"atoms": (rule,)})
    if rng.random() < 0.2 and {ClientFeature.HYBRID_MESH, ClientFeature.MUON_OWNERS} & {*features}:
        matrices = OptimizerGroup(parameters="layers.*.attn.w0,layers.*.mlp.w0", optimizer=OptimizerName.MUON)
        workload = workload.model_copy(update={"optimizer_groups": (matrices, *workload.optimizer_groups)})
    if rng.random() < 0.1:
        workload = workload.model_copy(update={"conditional": ("layers.0",)})
    return request.model_copy(update={"workload": workload})


def _cluster(rng: Random) -> ClusterDescription:
    devices = rng.choice((1, 2, 4, 4, 8, 8))
    nodes = rng.choice([n for n in (1, 1, 2, 4) if devices % n == 0])
    link = LinkSheet(name="link", bytes_per_s=rng.choice((1, 3)) * 10**9, latency_ns=rng.choice((0, 50, 400)))
    group_bytes = rng.choice((0, 40, 150))
    return ClusterDescription(
        name=f"{nodes} x {devices // nodes}",
        node_groups=(
            NodeGroup(
                num_nodes=nodes,
                devices_per_node=devices // nodes,
                device=DeviceSheet(
                    name="tiny",
                    memory_bytes=2**30,
                    memory_bytes_per_s=10**12,
                    flops_per_s={DType.FLOAT32: 10**12, DType.BFLOAT16: 10**12},
                    launch_ns=0,
                ),
                host_memory_bytes=rng.choice((0, 0, 2000 * devices, 2**34)),
                host_cores=8,
                intra_node=link,
            ),
        ),
        inter_node=link,
        reserve=Reserve(
            context_bytes=0,
            communicator_bytes=group_bytes,
            pair_communicator_bytes=group_bytes // 2,
            fragmentation=0.0,
        ),
    )


def _profile(rng: Random, model: ModelDescription) -> Profile:
    largest = 2**40
    latency_ns, bytes_per_ns = rng.choice((0, 50, 400)), rng.choice((1, 3))
    slow = rng.random() < 0.2
    return Profile(
        calls=tuple(
            CallMeasurement(
                kind=kind,
                micro_batch=micro_batch,
                sequence=SEQUENCE,
                forward_ns=rng.randint(0, 1500),
                backward_ns=rng.randint(0, 2500),
                recompute_ns=rng.randint(0, 1500),
            )
            for kind in model.kinds
            for micro_batch in MICRO_BATCHES
        ),
        collectives=tuple(
            CollectiveMeasurement(
                collective=collective,
                num_ranks=ranks,
                num_nodes=nodes,
                points=tuple(
                    CurvePoint(size_bytes=size, duration_ns=latency_ns + nodes * size // bytes_per_ns)
                    for size in (0, largest)
                ),
            )
            for collective in ("all_gather", "reduce_scatter", "all_reduce")
            for ranks in (2, 4, 8)
            for nodes in (1, 2, 4)
            if ranks % nodes == 0
        ),
        copies=(
            CopyMeasurement(direction="device_to_device", bytes_per_s=rng.choice((10**10, 10**12))),
            CopyMeasurement(direction="host_to_device", bytes_per_s=10**9),
            CopyMeasurement(direction="device_to_host", bytes_per_s=10**9),
        ),
        launch_ns=rng.choice((0, 0, 7, 40)),
        optimizer_parameters_per_s=rng.choice((10**8, 10**9)),
        cpu_optimizer_parameters_per_s_per_core=10**7,
        context_bytes=0,
        concurrent_collectives=rng.random() < 0.4,
        compute_slowdown_under_communication=0.25 if slow else 0.0,
        communication_slowdown_under_compute=0.125 if slow else 0.0,
    )


def _model(rng: Random) -> ModelDescription:
    width, vocabulary = rng.choice((4, 8, 16)), rng.choice((7, 16, 33))
    dtype = rng.choice((DType.FLOAT32, DType.FLOAT32, DType.BFLOAT16))
    num_blocks = rng.choice((1, 2, 2, 3, 4, 4))
    num_first = rng.randint(1, num_blocks) if rng.random() < 0.3 else 0
    has_parts, is_tied, is_frozen = rng.random() < 0.5, rng.random() < 0.15, rng.random() < 0.3
    builder = _Kinds(rng, width, dtype)
    builder.add("embedding", CallRole.EMBEDDING, ((vocabulary, width),), has_input_gradient=False)
    for name in ("first", "block"):
        builder.add_block(name, has_parts=has_parts, is_frozen=is_frozen and name == "first")
    builder.add("norm", CallRole.NORM, ((width,),))
    builder.add("head", CallRole.HEAD, ((vocabulary, width),))
    builder.add("loss", CallRole.LOSS, ())
    if is_tied:
        (head,) = builder.sets["head"]
        builder.sets["head"] = (head.model_copy(update={"tied_to": "embed.w0"}),)
    blocks = [(f"layers.{index}", "first" if index < num_first else "block") for index in range(num_blocks)]
    calls = [("embed", "embedding"), *blocks, ("norm", "norm"), ("head", "head"), (LOSS_PATH, "loss")]
    used = {kind for _, kind in calls}
    start = rng.randrange(len(calls) - 1)
    size = Polynomial(one=rng.randint(1, 300))
    shared = SharedTensor(size_bytes=size, first_call=start, last_call=rng.randrange(start, len(calls)))
    return ModelDescription(
        name="tiny",
        parameter_sets=builder.sets,
        modules=tuple(Module(path=path, parameters=kind) for path, kind in calls if builder.sets[kind]),
        kinds={name: kind for name, kind in builder.kinds.items() if name.partition(":")[0] in used},
        calls=tuple(Call(path=path, kind=kind) for path, kind in calls),
        shared=(shared,) if rng.random() < 0.3 else (),
        buffers_bytes=rng.choice((0, 64)),
        inputs_bytes=Polynomial(b=rng.choice((0, 96))),
        tree_sha256="sha256:" + "0" * 64,
        param_dtype=DType.FLOAT32,
        points=tuple(TracePoint(micro_batch=size, sequence=SEQUENCE) for size in MICRO_BATCHES),
        torch_version="2.13.0",
    )


class _Kinds:
    """Kinds and parameters of a model, one after the other."""

    def __init__(self, rng: Random, width: int, dtype: DType) -> None:
        self._rng, self._width, self._dtype = rng, width, dtype
        self.kinds: dict[str, CallKind] = {}
        self.sets: dict[str, tuple[Parameter, ...]] = {}

    def add(
        self, name: str, role: CallRole, shapes: tuple[tuple[int, ...], ...], *, has_input_gradient: bool = True
    ) -> None:
        """A kind that is no block."""
        self.kinds[name] = self._kind(role, tuple(f"w{n}" for n in range(len(shapes)))).model_copy(
            update={"input_requires_grad": has_input_gradient}
        )
        self.sets[name] = self._parameters({f"w{n}": shape for n, shape in enumerate(shapes)})

    def add_block(self, name: str, *, has_parts: bool, is_frozen: bool) -> None:
        """A block, with a kind for each of its parts where it has any; those are named after it."""
        width, rng = self._width, self._rng
        hidden = rng.choice((2, 2, 8)) * width
        shapes = {"ln.w0": (width,), "attn.w0": (width, width), "attn.w1": (width,), "mlp.w0": (hidden, width)}
        self.sets[name] = self._parameters(shapes, requires_grad=not is_frozen)
        order = () if is_frozen else tuple(shapes)
        block = self._checkpointable(self._kind(CallRole.BLOCK, order))
        if has_parts:
            parts: dict[str, CallKind] = {}
            for path, role in (("ln", CallRole.NORM), ("attn", CallRole.OTHER), ("mlp", CallRole.OTHER)):
                own = tuple(w.removeprefix(f"{path}.") for w in order if w.startswith(f"{path}."))
                part = self._kind(role, own)
                parts[path] = self._checkpointable(part) if rng.random() < 0.7 else part
            block = _whole(block, name, parts)
            self.kinds |= {f"{name}:{path}": part for path, part in parts.items()}
        frozen = {"output_requires_grad": False, "input_requires_grad": False}
        for key in [name, *(part.kind for part in block.parts)]:
            kind = block if key == name else self.kinds[key]
            self.kinds[key] = kind.model_copy(update=frozen) if is_frozen else kind

    def _parameters(
        self, shapes: dict[str, tuple[int, ...]], *, requires_grad: bool = True
    ) -> tuple[Parameter, ...]:
        return tuple(
            Parameter(name=name, shape=shape, dtype=self._dtype, requires_grad=requires_grad)
            for name, shape in shapes.items()
        )

    def _kind(self, role: CallRole, order: tuple[str, ...]) -> CallKind:
        rng = self._rng
        forward, backward, again = (Work(num_kernels=rng.randint(0, 5)) for _ in range(3))
        return CallKind(
            role=role,
            regions=(Region(forward=forward, backward=backward, recompute=again, host_sync=rng.random() < 0.05),),
            none=self._liveness(rng.choice((0, 200, 700)), len(order)),
            gradient_order=tuple(reversed(order)),
        )

    def _checkpointable(self, kind: CallKind) -> CallKind:
        """With full checkpointing, and none, one or two selective ways between."""
        saved, num = kind.none.kept_bytes(1, SEQUENCE), len(kind.gradient_order)
        selective = tuple(
            SelectiveCheckpoint(
                saved_ops=ops,
                liveness=self._liveness(saved * (share + 1) // 4, num),
                recompute=(Work(moved_bytes=Polynomial(one=self._rng.randint(1, 1000) * 10**3), num_kernels=1),),
            )
            for share, ops in enumerate(SAVED_OPS[: self._rng.randint(0, 2)])
        )
        return kind.model_copy(update={"full": self._liveness(saved // 5, num), "selective": selective})

    def _liveness(self, saved: int, num_gradients: int) -> Liveness:
        rng = self._rng
        kept = Polynomial(b=rng.randint(saved // 2, saved))
        return Liveness(
            saved=(SavedTensor(size_bytes=kept, op="aten.mm"),) if saved else (),
            forward=tuple(_moment(rng, 0) for _ in range(rng.randint(0, 2))),
            backward=tuple(_moment(rng, num_gradients) for _ in range(rng.randint(0, 2))),
            after_forward=Polynomial(one=rng.choice((0, 100))),
            after_backward=Polynomial(one=rng.choice((0, 100))),
        )


def _moment(rng: Random, num_gradients: int) -> Moment:
    return Moment(live_bytes=Polynomial(b=rng.randint(0, 900)), num_gradients=rng.randint(0, num_gradients))


def _whole(block: CallKind, name: str, parts: dict[str, CallKind]) -> CallKind:
    """The block with the work of its parts, and what they keep."""
    regions = [part.regions[0] for part in parts.values()]
    (region,) = block.regions
    sums = {
        step: Work(num_kernels=sum(getattr(one, step).num_kernels for one in regions))
        for step in ("forward", "backward")
    }
    saved = tuple(tensor for part in parts.values() for tensor in part.none.saved)
    return block.model_copy(
        update={
            "regions": (region.model_copy(update=sums),),
            "none": block.none.model_copy(update={"saved": saved}),
            "parts": tuple(Call(path=path, kind=f"{name}:{path}") for path in parts),
        }
    )
