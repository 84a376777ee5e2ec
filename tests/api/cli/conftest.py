"""Documents made by hand, in the shape of a small Llama on one node."""

from collections.abc import Callable

import pytest

from planner.schema import (
    LOSS_PATH,
    ActivationPlan,
    ActivationPolicy,
    Alternative,
    Call,
    CallKind,
    CallRole,
    Certificate,
    ClusterDescription,
    Decisions,
    DeviceSheet,
    DType,
    Infeasibility,
    InputHashes,
    LinkSheet,
    Liveness,
    MemoryBudget,
    MemoryCategory,
    MemoryPeak,
    MeshPlan,
    ModelDescription,
    Module,
    Moment,
    NodeGroup,
    NumberSource,
    OptimizerGroup,
    Parameter,
    Plan,
    PlanBody,
    PlanRequest,
    Polynomial,
    Predictions,
    Reasons,
    Region,
    RegionKind,
    SavedTensor,
    SearchLimits,
    SourcedNumber,
    StepBreakdown,
    Timings,
    TracePoint,
    UnitPlan,
    Work,
    Workload,
)

GIB = 1024**3
NUM_BLOCKS = 32
Bodies = Callable[..., PlanBody]


def make_request() -> PlanRequest:
    kinds = {
        "embedding": CallKind(role=CallRole.EMBEDDING),
        "block": CallKind(role=CallRole.BLOCK),
        "head": CallKind(role=CallRole.HEAD),
    }
    blocks = [f"model.layers.{index}" for index in range(NUM_BLOCKS)]
    return PlanRequest(
        model=ModelDescription(
            name="llama-3-8b",
            parameter_sets={
                "embedding": (Parameter(name="weight", shape=(128256, 4096), dtype=DType.BFLOAT16),),
                "block": (Parameter(name="weight", shape=(53252, 4096), dtype=DType.BFLOAT16),),
            },
            modules=(
                Module(path="model.embed_tokens", parameters="embedding"),
                *(Module(path=path, parameters="block") for path in blocks),
                Module(path="lm_head", parameters="embedding"),
            ),
            kinds=kinds,
            calls=(
                Call(path="model.embed_tokens", kind="embedding"),
                *(Call(path=path, kind="block") for path in blocks),
                Call(path="lm_head", kind="head"),
            ),
            tree_sha256=f"sha256:{'0' * 64}",
        ),
        cluster=ClusterDescription(
            name="h100-8",
            node_groups=(
                NodeGroup(
                    num_nodes=1,
                    devices_per_node=8,
                    device=DeviceSheet(
                        name="H100",
                        memory_bytes=80 * GIB,
                        memory_bytes_per_s=3_350_000_000_000,
                        flops_per_s={DType.BFLOAT16: 989_000_000_000_000},
                    ),
                    intra_node=LinkSheet(name="NVLink", bytes_per_s=450_000_000_000, latency_ns=2_000),
                ),
            ),
        ),
        workload=Workload(micro_batch=1, sequence=4096, global_batch=64, optimizer_groups=(OptimizerGroup(),)),
    )


def make_small_request(*, memory_bytes: int = 24 * GIB) -> PlanRequest:
    """A request that is planned in a second: six blocks of 50 M parameters on four ranks."""
    hidden = 4096

    def kind(role: CallRole, *, flops: int, saved: int, order: tuple[str, ...]) -> CallKind:
        per_token = Polynomial(bs=saved)
        live = Polynomial(bs=saved + 4 * hidden)
        return CallKind(
            role=role,
            regions=(
                Region(
                    kind=RegionKind.MATMUL,
                    forward=Work(flops=Polynomial(bs=flops), moved_bytes=per_token, num_kernels=12),
                    backward=Work(flops=Polynomial(bs=2 * flops), moved_bytes=per_token, num_kernels=20),
                    recompute=Work(flops=Polynomial(bs=flops), moved_bytes=per_token, num_kernels=12),
                ),
            ),
            none=Liveness(
                saved=(SavedTensor(size_bytes=per_token),),
                forward=(Moment(live_bytes=live),),
                backward=(Moment(live_bytes=live, num_gradients=len(order)),),
            ),
            full=Liveness(
                saved=(SavedTensor(size_bytes=Polynomial(bs=2 * hidden), from_input=True),),
                forward=(Moment(live_bytes=live),),
                backward=(Moment(live_bytes=live, num_gradients=len(order)),),
            )
            if role is CallRole.BLOCK
            else None,
            gradient_order=order,
            input_requires_grad=role is not CallRole.EMBEDDING,
        )

    weight = ("weight",)
    blocks = [f"layers.{index}" for index in range(6)]
    return PlanRequest(
        model=ModelDescription(
            name="small",
            parameter_sets={
                "embedding": (Parameter(name="weight", shape=(8000, hidden)),),
                "block": (Parameter(name="weight", shape=(3 * hidden, hidden)),),
            },
            modules=(
                Module(path="embed", parameters="embedding"),
                *(Module(path=path, parameters="block") for path in blocks),
                Module(path="head", parameters="embedding"),
            ),
            kinds={
                "embedding": kind(CallRole.EMBEDDING, flops=0, saved=8, order=weight),
                "block": kind(CallRole.BLOCK, flops=6 * hidden * hidden, saved=34 * hidden, order=weight),
                "head": kind(CallRole.HEAD, flops=2 * 8000 * hidden, saved=2 * hidden, order=weight),
                "loss": kind(CallRole.LOSS, flops=0, saved=16_000, order=()),
            },
            calls=(
                Call(path="embed", kind="embedding"),
                *(Call(path=path, kind="block") for path in blocks),
                Call(path="head", kind="head"),
                Call(path=LOSS_PATH, kind="loss"),
            ),
            tree_sha256=f"sha256:{'0' * 64}",
            points=(TracePoint(micro_batch=2, sequence=4096),),
        ),
        cluster=ClusterDescription(
            name="four-cards",
            node_groups=(
                NodeGroup(
                    num_nodes=1,
                    devices_per_node=4,
                    device="RTX-4090",
                    device_memory_bytes=memory_bytes,
                    intra_node="pcie4-x16",
                ),
            ),
        ),
        workload=Workload(micro_batch=2, sequence=4096, global_batch=16),
        search=SearchLimits(deterministic_time=2.0, gap=0.02),
    )


def make_decisions(*, checkpointed: tuple[int, ...], kept: tuple[int, ...] = (), prefetch: int = 0) -> Decisions:
    blocks = [f"model.layers.{index}" for index in range(NUM_BLOCKS)]
    return Decisions(
        mesh=MeshPlan(shard=8),
        units=(
            UnitPlan(modules=("model.embed_tokens",), reshard_after_forward=True, num_parameters=525_336_576),
            *(
                UnitPlan(
                    modules=(path,),
                    reshard_after_forward=index not in kept,
                    forward_prefetch=tuple(blocks[index + 1 : index + 1 + prefetch]),
                    num_parameters=218_112_000,
                )
                for index, path in enumerate(blocks)
            ),
            UnitPlan(modules=("model.norm", "lm_head"), reshard_after_forward=False, num_parameters=525_340_672),
            UnitPlan(modules=("",)),
        ),
        activations=tuple(
            ActivationPlan(module=blocks[index], policy=ActivationPolicy.FULL) for index in checkpointed
        ),
        param_dtype=DType.BFLOAT16,
        reduce_dtype=DType.FLOAT32,
        micro_batch=1,
        num_micro_batches=8,
    )


def make_predictions(*, step_time_ns: int = 4_812_345_678, reserved_bytes: int = int(63.4 * GIB)) -> Predictions:
    parts = {
        MemoryCategory.PARAMETERS: int(3.74 * GIB),
        MemoryCategory.OPTIMIZER: int(7.48 * GIB),
        MemoryCategory.GRADIENTS: int(3.74 * GIB),
        MemoryCategory.UNSHARDED_PARAMETERS: int(1.4 * GIB),
        MemoryCategory.UNSHARDED_GRADIENTS: int(0.41 * GIB),
        MemoryCategory.GATHER_BUFFERS: int(0.41 * GIB),
        MemoryCategory.REDUCE_BUFFERS: int(0.81 * GIB),
        MemoryCategory.ACTIVATIONS: int(38.2 * GIB),
        MemoryCategory.TRANSIENTS: int(5.1 * GIB),
        MemoryCategory.BUFFERS: 1_048_576,
    }
    allocated = sum(parts.values())
    compute = step_time_ns * 78 // 100
    shares = {
        "recompute_ns": step_time_ns * 9 // 100,
        "copy_ns": step_time_ns * 2 // 100,
        "exposed_all_gather_ns": step_time_ns * 4 // 100,
        "exposed_reduce_scatter_ns": step_time_ns * 3 // 100,
        "exposed_launch_ns": step_time_ns // 100,
    }
    shares["optimizer_ns"] = step_time_ns - compute - sum(shares.values())
    return Predictions(
        step_time_ns=step_time_ns,
        breakdown=StepBreakdown(compute_ns=compute, **shares, total_ns=step_time_ns),
        peak=MemoryPeak(
            pools_bytes={"compute": allocated, "copy_in": max(0, reserved_bytes - allocated)},
            reserved_bytes=reserved_bytes,
            allocated_bytes=min(allocated, reserved_bytes),
            by_category_bytes=parts,
            moment="backward of model.layers.31",
        ),
        budget=MemoryBudget(
            device_bytes=80 * GIB,
            context_bytes=GIB // 2,
            communicators_bytes=690_000_000,
            num_communicators=1,
            fragmentation_bytes=int(3.2 * GIB),
            budget_bytes=80 * GIB - GIB // 2 - 690_000_000 - int(3.2 * GIB),
        ),
        tokens_per_s=64 * 4096 / (step_time_ns / 1e9),
        model_flops_utilization=0.4231,
        num_all_gathers=67,
        num_reduce_scatters=35,
        sources=(
            SourcedNumber(name="all_gather of 8 ranks", value=1, unit="ns", source=NumberSource.MEASURED),
            SourcedNumber(name="reduce_scatter of 8 ranks", value=1, unit="ns", source=NumberSource.MEASURED),
            SourcedNumber(name="matmul rate", value=1, unit="per_s", source=NumberSource.ASSUMED),
            SourcedNumber(name="memory bandwidth", value=1, unit="bytes_per_s", source=NumberSource.ASSUMED),
        ),
    )


def make_body(
    *,
    decisions: Decisions | None = None,
    predictions: Predictions | None = None,
    infeasibility: Infeasibility | None = None,
    certificate: Certificate | None = None,
) -> PlanBody:
    request = make_request()
    feasible = infeasibility is None
    predictions = predictions or make_predictions()
    bound = predictions.step_time_ns * 9992 // 10_000
    return PlanBody(
        name="llama-3-8b on h100-8",
        outcome="feasible" if feasible else "infeasible",
        model_fingerprint=request.model.fingerprint,
        world_size=8,
        decisions=(decisions or make_decisions(checkpointed=tuple(range(0, NUM_BLOCKS, 3)))) if feasible else None,
        predictions=predictions if feasible else None,
        certificate=(
            certificate
            or Certificate(
                value=predictions.step_time_ns,
                lower_bound=bound,
                gap=0.0008,
                status="bounded",
                num_candidates=12,
                num_pruned=9,
                checker="passed",
            )
        )
        if feasible
        else None,
        reasons=Reasons(
            binds="activations in backward of model.layers.31",
            notes=("One gigabyte more would save the recompute of one block.",),
            alternatives=(
                Alternative(
                    change="checkpoint every block",
                    step_time_ns=predictions.step_time_ns * 112 // 100,
                    reserved_bytes=31 * GIB,
                    fits=True,
                ),
                Alternative(
                    change="checkpoint nothing",
                    step_time_ns=predictions.step_time_ns * 91 // 100,
                    reserved_bytes=91 * GIB,
                    fits=False,
                ),
            ),
        )
        if feasible
        else Reasons(),
        infeasibility=infeasibility,
        inputs=InputHashes(
            model=request.model.content_hash(),
            cluster=request.cluster.content_hash(),
            workload=request.workload.content_hash(),
            request=request.content_hash(),
        ),
        planner_version="0.1.0",
    )


def make_infeasible() -> PlanBody:
    return make_body(
        infeasibility=Infeasibility(
            reason="Parameters, gradients and optimizer state alone take more than the device has.",
            binding=MemoryCategory.OPTIMIZER,
            needed_bytes=int(92.3 * GIB),
            budget_bytes=int(75.6 * GIB),
            smallest_device_memory_bytes=int(98.1 * GIB),
            fewest_ranks=16,
            advice=("keep the optimizer state in bfloat16", "use 16 ranks or more"),
        )
    )


@pytest.fixture
def request_document() -> PlanRequest:
    return make_request()


@pytest.fixture
def small_request() -> PlanRequest:
    return make_small_request()


@pytest.fixture
def crowded_request() -> PlanRequest:
    return make_small_request(memory_bytes=3 * GIB)


@pytest.fixture
def bodies() -> Bodies:
    return make_body


@pytest.fixture
def decide() -> Callable[..., Decisions]:
    return make_decisions


@pytest.fixture
def predict_numbers() -> Callable[..., Predictions]:
    return make_predictions


@pytest.fixture
def infeasible() -> PlanBody:
    return make_infeasible()


@pytest.fixture
def feasible_plan() -> Plan:
    return Plan.of(make_body(), timings=Timings(total_s=12.4))


@pytest.fixture
def infeasible_plan() -> Plan:
    return Plan.of(make_infeasible())
