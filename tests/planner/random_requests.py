"""Random small requests and random decisions for them: every knob, every role, uneven sizes."""

import random

from planner.schema import (
    Decisions,
    DType,
    KeptBy,
    ModelDescription,
    OptimizerName,
    PlanRequest,
    Precision,
    RuntimeKnobs,
    SharedTensor,
    UnitPlan,
)
from planner.schema.polynomial import Polynomial
from tests.planner.factories import (
    CallSpec,
    ClusterSpec,
    tiny_cluster,
    tiny_decisions,
    tiny_model,
    tiny_profile,
    tiny_request,
)

PRECISIONS = (
    Precision(param_dtype=None, reduce_dtype=None),
    Precision(param_dtype=DType.BFLOAT16, reduce_dtype=DType.FLOAT32),
    Precision(param_dtype=DType.BFLOAT16, reduce_dtype=None),
    Precision(param_dtype=None, reduce_dtype=DType.BFLOAT16),
)


def random_request(seed: int, *, num_blocks: int | None = None, num_devices: int | None = None) -> PlanRequest:
    """A request with random sizes, durations, precision, optimizer and accumulation."""
    rng = random.Random(seed)
    devices = num_devices or rng.choice((1, 2, 4, 4, 8))
    nodes = rng.choice([n for n in (1, 2, 4) if devices % n == 0])
    model = _model(rng, num_blocks or rng.randint(1, 4))
    durations = {kind: (rng.randint(0, 3000), rng.randint(0, 5000), rng.randint(0, 3000)) for kind in model.kinds}
    groups = [(ranks, n) for ranks in (2, 4, 8) for n in (1, 2, 4) if ranks % n == 0]
    profile = tiny_profile(
        durations,
        launch_ns=rng.choice((0, 0, 7, 40)),
        collective_latency_ns=rng.choice((0, 50, 400)),
        collective_bytes_per_ns=rng.choice((1, 3)),
        groups=groups,
    )
    cluster = tiny_cluster(
        devices, devices_per_node=devices // nodes, spec=ClusterSpec(memory_bytes=rng.choice((2**30, 2**20)))
    )
    return tiny_request(
        model,
        cluster,
        profile=profile,
        precision=rng.choice(PRECISIONS),
        optimizer=rng.choice((OptimizerName.ADAMW, OptimizerName.SGD)),
        num_micro_batches=rng.choice((1, 1, 2, 3)),
    )


def random_decisions(request: PlanRequest, seed: int) -> Decisions:
    """Any decisions that the contract allows for the request."""
    rng = random.Random(seed)
    world = request.cluster.num_devices
    shard = rng.choice([n for n in range(1, world + 1) if world % n == 0])
    blocks = [call.path for call in request.model.calls if call.path.startswith("layers.")]
    paths = {call.path for call in request.model.calls}
    extra = []
    if "embed" in paths and rng.random() < 0.5 and not _is_tied(request.model):
        extra.append(UnitPlan(modules=("embed",), reshard_after_forward=rng.choice((True, False))))
    if {"norm", "head"} <= paths and rng.random() < 0.5 and not _is_tied(request.model):
        extra.append(UnitPlan(modules=("norm", "head"), reshard_after_forward=rng.choice((True, False))))
    return tiny_decisions(
        request,
        shard=shard,
        replicate=world // shard,
        reshard=rng.choice((True, None)),
        root_reshard=rng.choice((None, False, True)),
        keep=[path for path in blocks if rng.random() < 0.4],
        checkpoint=[path for path in blocks if rng.random() < 0.5],
        forward_prefetch=rng.randint(0, 3),
        backward_prefetch=rng.randint(0, 3),
        extra_units=extra,
        runtime=RuntimeKnobs(reduce_scatter_max_input_buffers=rng.choice((1, 1, 2, 3))),
    )


def _model(rng: random.Random, num_blocks: int) -> ModelDescription:
    width = rng.choice((4, 6, 10))
    frozen = rng.random() < 0.15

    def spec(shapes: tuple[tuple[int, ...], ...], *, block: bool = False, first: bool = False) -> CallSpec:
        count = len(shapes)
        saved = rng.randint(0, 400)
        moments = [(rng.randint(0, 900), rng.randint(0, 0 if frozen else count)) for _ in range(rng.randint(0, 3))]
        return CallSpec(
            shapes=shapes,
            saved=saved,
            forward_live=tuple(rng.randint(0, 800) for _ in range(rng.randint(0, 3))),
            backward_live=moments,
            full_saved=rng.randint(0, saved) if block else None,
            full_backward_live=[(rng.randint(0, 1200), grads) for _, grads in moments] if block else (),
            kernels=(rng.randint(0, 5), rng.randint(0, 9), rng.randint(0, 5)),
            input_requires_grad=not first,
            requires_grad=not (frozen and block),
            host_sync=rng.random() < 0.15,
        )

    tied = rng.random() < 0.2
    vocabulary = rng.choice((7, 16, 33))
    calls = num_blocks + 4
    shared = ()
    if rng.random() < 0.4:
        start = rng.randrange(calls - 1)
        shared = (
            SharedTensor(
                size_bytes=Polynomial(one=rng.randint(1, 300)),
                first_call=start,
                last_call=rng.randrange(start, calls),
                kept_by=rng.choice(list(KeptBy)),
            ),
        )
    return tiny_model(
        num_blocks,
        block=spec(((width, width), (width * 2, width), (width,)), block=True),
        embedding=spec(((vocabulary, width),), first=True),
        norm=spec(((width,),)),
        head=spec(((vocabulary, width),)),
        loss=spec(()),
        tied_head=tied,
        shared=shared,
        buffers_bytes=rng.choice((0, 64)),
        inputs_bytes=Polynomial(b=rng.choice((0, 96)), bs=rng.choice((0, 8)), ss=rng.choice((0, 1))),
        dtype=rng.choice((DType.FLOAT32, DType.FLOAT32, DType.BFLOAT16)),
    )


def _is_tied(model: ModelDescription) -> bool:
    return any(parameter.tied_to for _, parameter in model.iter_parameters())
