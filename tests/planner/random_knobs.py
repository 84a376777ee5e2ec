"""Random decisions over every knob of FSDP2, for random requests: what `random_requests` leaves at its default."""

import random
from typing import Any

from planner.schema import (
    LOSS_PATH,
    OUTPUT_PATH,
    ActivationPlan,
    ActivationPolicy,
    Call,
    CallKind,
    CallRole,
    Decisions,
    DeviceSheet,
    DType,
    GradientSync,
    HeldInput,
    KeptBy,
    Liveness,
    MeshPlan,
    ModelDescription,
    Moment,
    OptimizerName,
    Parameter,
    PlanRequest,
    Polynomial,
    RuntimeKnobs,
    SavedTensor,
    SelectiveCheckpoint,
    ShardDim,
    SharedTensor,
    StateTier,
    UnitPlan,
    Work,
)
from tests.planner.check.nested import Block, Knobs, nested_decisions, nested_model, nested_request
from tests.planner.factories import CallSpec, call_kind
from tests.planner.random_requests import PRECISIONS, random_decisions, random_request

SAVED_OPS = (("aten.mm.default",), ("aten._scaled_dot_product_attention.default", "aten.mm.default"))


def random_case(seed: int) -> tuple[PlanRequest, Decisions]:
    """A request and decisions for it, a few further knobs in use."""
    rng = random.Random(seed)
    request = random_request(seed)
    repeats = rng.random() < 0.25
    request = _with_host_link(_changed(request, model=_richer(request.model, rng, repeats=repeats)))
    decisions = random_decisions(request, seed + 1)
    listed = {unit.modules: unit for unit in decisions.units}.values()
    units = [_unit(unit, decisions.mesh, rng) for unit in listed]
    if rng.random() < 0.25:
        units.insert(-1, UnitPlan(modules=("layers",), reshard_after_forward=rng.choice((True, False))))
    meshes = [decisions.mesh, *(unit.mesh for unit in units if unit.mesh is not None)]
    reduce_dtype = DType.FLOAT16 if rng.random() < 0.15 else decisions.reduce_dtype
    runtime: dict[str, Any] = {
        "gradient_sync": rng.choice(list(GradientSync)),
        "reduce_scatter_unused_params": rng.random() < 0.3,
        "separate_reduce_scatter_group": rng.random() < 0.3,
        "post_optimizer_event": rng.random() < 0.3,
    }
    if reduce_dtype is not decisions.reduce_dtype:
        precision = request.workload.precision.model_copy(update={"reduce_dtype": reduce_dtype})
        request = _changed(request, workload=request.workload.model_copy(update={"precision": precision}))
    request = _changed(request, model=_with_held_inputs(request.model, random.Random(seed + 2)))
    return request, decisions.model_copy(
        update={
            "units": _state_away(request, units, random.Random(seed + 3)),
            "activations": _activations(decisions, rng),
            "reduce_dtype": reduce_dtype,
            "shard_dims": _shard_dims(request.model, max(mesh.shard for mesh in meshes), rng),
            "runtime": decisions.runtime.model_copy(update=runtime),
        }
    )


def random_nested_case(seed: int) -> tuple[PlanRequest, Decisions]:
    """A request whose blocks have parts, and decisions with units and checkpointed modules inside blocks."""
    rng = random.Random(seed)
    block = Block(
        saved=rng.randint(1, 300),
        full_saved=rng.randint(0, 300),
        has_spare=rng.random() < 0.3,
        end=rng.choice(("", "glue", "tail")),
    )
    model = nested_model(rng.randint(1, 3), block=block, repeats=rng.choice((1, 1, 1, 2)))
    sizes = random.Random(seed + 1)
    kinds = {name: _with_flight(kind, sizes) for name, kind in model.kinds.items()}
    model = model.model_copy(update={"kinds": kinds})
    if rng.random() < 0.5:
        kinds = {name: _with_flight(kind, rng) for name, kind in model.kinds.items()}
        model = model.model_copy(update={"kinds": kinds})
    if rng.random() < 0.5 and len({call.path for call in model.calls}) == len(model.calls):
        first, last = sorted(rng.choices(range(len(model.calls)), k=2))
        size_bytes, kept_by = Polynomial(one=rng.randint(1, 300)), rng.choice(list(KeptBy))
        later = range(first + 1, len(model.calls))
        shared = SharedTensor(
            size_bytes=size_bytes,
            first_call=first,
            last_call=last,
            kept_by=kept_by,
            held_until=rng.choice((None, *later)),
        )
        model = model.model_copy(update={"shared": (shared,)})
    request = _with_host_link(
        nested_request(
            model,
            num_devices=rng.choice((1, 2, 4, 8)),
            num_micro_batches=rng.choice((1, 1, 2, 3)),
            precision=rng.choice(PRECISIONS),
        )
    )
    inner = [name for name in ("attn", "mlp") if rng.random() < 0.5]
    decisions = nested_decisions(
        request,
        Knobs(
            units=(*inner, ""),
            reshard=rng.choice((None, True, False)),
            replicate=rng.choice([n for n in (1, 2) if request.cluster.num_devices % n == 0]),
            runtime=RuntimeKnobs(
                gradient_sync=rng.choice(list(GradientSync)),
                reduce_scatter_max_input_buffers=rng.choice((1, 1, 2)),
            ),
        ),
    )
    paths = list(dict.fromkeys(call.path for call in model.calls if call.path.startswith("layers.")))
    full = [path for path in paths if rng.random() < 0.5]
    full += [f"{path}.attn" for path in paths if rng.random() < 0.3]
    offloaded = [f"{path}.mlp" for path in paths if rng.random() < 0.2]
    return request, decisions.model_copy(
        update={
            "units": tuple(_unit(unit, decisions.mesh, rng) for unit in decisions.units),
            "activations": (
                *(ActivationPlan(module=path, policy=ActivationPolicy.FULL) for path in full),
                *(ActivationPlan(module=path, policy=ActivationPolicy.OFFLOAD) for path in offloaded),
            ),
        }
    )


def _with_held_inputs(model: ModelDescription, rng: random.Random) -> ModelDescription:
    """Of some calls a part of what they keep is held by callers."""
    pairs = [
        (call, rng.randrange(call + 1, len(model.calls)))
        for call in range(len(model.calls) - 1)
        if rng.random() < 0.5
    ]
    held = (HeldInput(size_bytes=Polynomial(one=rng.randint(1, 300)), call=c, held_until=u) for c, u in pairs)
    return model.model_copy(update={"held_inputs": tuple(held)})


def _changed(request: PlanRequest, **update: Any) -> PlanRequest:
    return request.model_copy(update=update)


def _with_host_link(request: PlanRequest) -> PlanRequest:
    (group,) = request.cluster.node_groups
    assert isinstance(group.device, DeviceSheet)
    device = group.device.model_copy(update={"host_link_bytes_per_s": 500_000_000})
    drive = {"nvme_bytes": 2**36, "nvme_read_bytes_per_s": 300_000_000, "nvme_write_bytes_per_s": 200_000_000}
    group = group.model_copy(update={"device": device, "host_cores": 8, "host_memory_bytes": 2**34, **drive})
    return _changed(request, cluster=request.cluster.model_copy(update={"node_groups": (group,)}))


def _richer(model: ModelDescription, rng: random.Random, *, repeats: bool) -> ModelDescription:
    """The model with selective checkpointing, a parameter that no call uses, a cast, a block that runs twice."""
    kinds = {name: _with_flight(kind, rng) for name, kind in model.kinds.items()}
    kinds["block"] = _with_selective(kinds["block"], rng)
    sets = dict(model.parameter_sets)
    if rng.random() < 0.5:
        dtype = sets["block"][0].dtype
        sets["block"] = (*sets["block"], Parameter(name="unused", shape=(rng.choice((4, 8)), 8), dtype=dtype))
    calls = list(model.calls)
    if calls[-1].path == LOSS_PATH and rng.random() < 0.5:
        live = rng.randint(0, 900)
        spec = CallSpec(forward_live=(live,), backward_live=((live, 0),), kernels=(rng.randint(0, 2), 1, 0))
        kinds["output"] = _with_flight(call_kind(spec, CallRole.GLUE), rng)
        calls.insert(-1, Call(path=OUTPUT_PATH, kind="output"))
    shared = tuple(
        tensor.model_copy(update={"kept_by": rng.choice(list(KeptBy))}) if rng.random() < 0.5 else tensor
        for tensor in model.shared
    )
    if repeats:
        index = next(i for i, call in enumerate(calls) if call.path == "layers.0")
        calls.insert(index + 1, calls[index])
        shared = ()
    return model.model_copy(
        update={"kinds": kinds, "parameter_sets": sets, "calls": tuple(calls), "shared": shared}
    )


def _with_flight(kind: CallKind, rng: random.Random) -> CallKind:
    """Something is alive between one call and the next."""

    def flown(liveness: Liveness) -> Liveness:
        names = ("at_return", "after_forward", "after_backward", "before_sums")
        sizes = {name: Polynomial(one=rng.randint(0, 200)) for name in names}
        in_sums = tuple(Polynomial(one=rng.randint(0, 400)) for _ in range(rng.randint(0, 2)))
        return liveness.model_copy(update=sizes | {"in_sums": in_sums})

    full = None if kind.full is None else flown(kind.full)
    return kind.model_copy(update={"none": flown(kind.none), "full": full})


def _with_selective(kind: CallKind, rng: random.Random) -> CallKind:
    assert kind.full is not None

    def option(ops: tuple[str, ...]) -> SelectiveCheckpoint:
        return SelectiveCheckpoint(
            saved_ops=ops,
            liveness=Liveness(
                saved=(SavedTensor(size_bytes=Polynomial(one=rng.randint(1, 300))),),
                forward=(Moment(live_bytes=Polynomial(one=rng.randint(0, 900))),),
                backward=(Moment(live_bytes=Polynomial(one=rng.randint(0, 900)), num_gradients=1),)
                if kind.gradient_order
                else (),
            ),
            recompute=tuple(
                Work(moved_bytes=Polynomial(one=100), num_kernels=rng.randint(0, 3)) for _ in kind.regions
            ),
        )

    return kind.model_copy(update={"selective": tuple(map(option, SAVED_OPS))})


def _unit(unit: UnitPlan, mesh: MeshPlan, rng: random.Random) -> UnitPlan:
    """A quarter of the units, the root left out, may be on another mesh."""
    update: dict[str, Any] = {"reshard_after_backward": rng.random() < 0.7}
    world = mesh.num_ranks
    others = [MeshPlan(replicate=world // n, shard=n) for n in range(1, world + 1) if world % n == 0]
    others.remove(mesh)
    shard = mesh.shard
    if others and unit.modules != ("",) and rng.random() < 0.25:
        update["mesh"] = rng.choice(others)
        shard = update["mesh"].shard
    divisors = [n for n in range(2, shard) if shard % n == 0]
    for field in ("forward_prefetch", "backward_prefetch"):  # a block that runs twice is listed twice
        update[field] = tuple(path for path in dict.fromkeys(getattr(unit, field)) if path not in unit.modules)
    if divisors and rng.random() < 0.4:
        update["reshard_after_forward"] = rng.choice(divisors)
    if rng.random() < 0.2:
        update |= {"parameter_tier": StateTier.HOST, "optimizer_tier": StateTier.HOST}
    return unit.model_copy(update=update)


def _state_away(request: PlanRequest, units: list[UnitPlan], rng: random.Random) -> tuple[UnitPlan, ...]:
    """Adam's state of some units with parameters on the device is elsewhere, in two cases of five."""
    tier = rng.choice([StateTier.HOST, StateTier.NVME, *[StateTier.DEVICE] * 3])
    if request.workload.optimizer_groups[0].optimizer is not OptimizerName.ADAMW:
        return tuple(units)
    return tuple(
        unit.model_copy(update={"optimizer_tier": tier})
        if unit.parameter_tier is StateTier.DEVICE and rng.random() < 0.6
        else unit
        for unit in units
    )


def _activations(decisions: Decisions, rng: random.Random) -> tuple[ActivationPlan, ...]:
    def changed(entry: ActivationPlan) -> ActivationPlan:
        chance = rng.random()
        if chance < 0.5:
            return entry
        if chance < 0.7:
            return entry.model_copy(update={"policy": ActivationPolicy.OFFLOAD})
        return entry.model_copy(update={"policy": ActivationPolicy.SELECTIVE, "saved_ops": rng.choice(SAVED_OPS)})

    return tuple(map(changed, {entry.module: entry for entry in decisions.activations}.values()))


def _shard_dims(model: ModelDescription, shard: int, rng: random.Random) -> tuple[ShardDim, ...]:
    return tuple(
        ShardDim(parameter=name, dim=1)
        for name, parameter in model.iter_parameters()
        if len(parameter.shape) > 1
        and parameter.shape[1] % shard == 0
        and parameter.tied_to is None
        and rng.random() < 0.3
    )
