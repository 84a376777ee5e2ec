"""Laws of steps: what a knob can and cannot do.

Where a law that one would expect is false, a counterexample says why. Memory is counted twice: `reserved` is the
sum of the pools' peaks, `allocated` the peak of their sum.
"""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.costs import CostModel
from planner.program.events import OperationKind, Stream
from planner.program.inputs import local_shards, meshes_of, partition_of
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Decisions,
    GradientSync,
    OptimizerName,
    Parameter,
    PlanRequest,
    RuntimeKnobs,
    UnitPlan,
)
from planner.simulate import replay
from planner.simulate.predict import largest_of, program_of
from tests.planner.factories import (
    FULL_PRECISION,
    MIXED_PRECISION,
    CallSpec,
    ClusterSpec,
    tiny_cluster,
    tiny_decisions,
    tiny_model,
    tiny_profile,
    tiny_request,
)

RANKS = 4
KINDS = ("embedding", "block", "norm", "head", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Measures of a step."""

    step_ns: int
    reserved: int
    allocated: int
    pools: dict[str, int]
    collectives: int


def step_of(request: PlanRequest, decisions: Decisions) -> Step:
    built = program_of(request, decisions)
    runs = [(replay(program), num) for program, num in built.programs]
    pools = largest_of(run.pools_bytes for run, _ in runs)
    kinds = (OperationKind.ALL_GATHER, OperationKind.REDUCE_SCATTER, OperationKind.ALL_REDUCE)
    return Step(
        step_ns=sum(num * run.micro_batch_ns for run, num in runs),
        reserved=sum(pools.values()),
        allocated=max(run.allocated_bytes for run, _ in runs),
        pools=pools,
        collectives=sum(num * run.count(kind) for run, num in runs for kind in kinds),
    )


@st.composite
def specs(draw: st.DrawFn, *, block: bool = False, first: bool = False) -> CallSpec:
    """A call of any size; blocks can be checkpointed."""
    count = draw(st.integers(1, 3))
    shapes = tuple((draw(st.integers(1, 20)), draw(st.integers(1, 8))) for _ in range(count))
    saved = draw(st.integers(0, 400))
    live = st.integers(0, 900)
    moments = draw(st.lists(st.tuples(live, st.integers(0, count)), max_size=2))
    return CallSpec(
        shapes=shapes,
        saved=saved,
        forward_live=tuple(draw(st.lists(live, max_size=2))),
        backward_live=moments,
        full_saved=draw(st.integers(0, saved)) if block else None,
        full_backward_live=moments if block else (),
        kernels=(draw(st.integers(0, 4)), draw(st.integers(0, 6)), draw(st.integers(0, 4))),
        input_requires_grad=not first,
        host_sync=draw(st.booleans()) and draw(st.booleans()),
    )


@st.composite
def requests(draw: st.DrawFn, *, launch: bool = True) -> PlanRequest:
    """A small model on four ranks of one or two nodes."""
    durations = {
        kind: (draw(st.integers(0, 3_000)), draw(st.integers(0, 5_000)), draw(st.integers(0, 3_000)))
        for kind in KINDS
    }
    model = tiny_model(
        draw(st.integers(1, 4)),
        block=draw(specs(block=True)),
        embedding=draw(specs(first=True)),
        norm=CallSpec(shapes=((4,),)),
        head=draw(specs()),
        buffers_bytes=draw(st.sampled_from([0, 64])),
    )
    profile = tiny_profile(
        durations,
        launch_ns=draw(st.sampled_from([0, 7, 40])) if launch else 0,
        collective_latency_ns=draw(st.sampled_from([0, 50, 400])),
        collective_bytes_per_ns=draw(st.sampled_from([1, 3])),
    )
    return tiny_request(
        model,
        tiny_cluster(RANKS, devices_per_node=draw(st.sampled_from([2, RANKS]))),
        profile=profile,
        precision=draw(st.sampled_from([FULL_PRECISION, MIXED_PRECISION])),
        num_micro_batches=draw(st.sampled_from([1, 1, 3])),
    )


def blocks_of(request: PlanRequest) -> list[str]:
    return [call.path for call in request.model.calls if call.path.startswith("layers.")]


@st.composite
def cases(draw: st.DrawFn, *, launch: bool = True) -> tuple[PlanRequest, dict]:
    """A request, and arguments of `tiny_decisions` for it."""
    request = draw(requests(launch=launch))
    paths = st.lists(st.sampled_from(blocks_of(request)), unique=True)
    own = [
        UnitPlan(modules=("embed",)),
        UnitPlan(modules=("norm", "head"), reshard_after_forward=draw(st.booleans())),
    ]
    return request, {
        "replicate": draw(st.sampled_from([1, 2])),
        "root_reshard": draw(st.sampled_from([None, True, False])),
        "keep": draw(paths),
        "checkpoint": draw(paths),
        "forward_prefetch": draw(st.integers(0, 3)),
        "backward_prefetch": draw(st.integers(0, 3)),
        "extra_units": draw(st.lists(st.sampled_from(own), unique_by=lambda unit: unit.modules)),
        "runtime": RuntimeKnobs(reduce_scatter_max_input_buffers=draw(st.integers(1, 3))),
    }


def decide(case: tuple[PlanRequest, dict], **changes: object) -> Decisions:
    request, fields = case
    return tiny_decisions(request, **{**fields, **changes})


def compared(case: tuple[PlanRequest, dict], **changes: object) -> tuple[Step, Step]:
    """The step as it is, and with some fields of its decisions changed."""
    request, _ = case
    return step_of(request, decide(case)), step_of(request, decide(case, **changes))


def runtime(case: tuple[PlanRequest, dict], **changes: object) -> RuntimeKnobs:
    knobs: RuntimeKnobs = case[1]["runtime"]
    return knobs.model_copy(update=changes)


def sampled(number: int):
    return settings(max_examples=number, deadline=None)


# Prefetch


@given(cases(), st.sampled_from(["forward_prefetch", "backward_prefetch"]))
@sampled(60)
def test_deeper_prefetch_never_lowers_the_peak(case, direction):
    shallow, deep = compared(case, **{direction: case[1][direction] + 1})
    assert deep.reserved >= shallow.reserved
    assert deep.allocated >= shallow.allocated
    assert deep.collectives == shallow.collectives


@given(cases(launch=False))
@sampled(40)
def test_deeper_forward_prefetch_is_never_slower_when_launches_are_free(case):
    shallow, deep = compared(case, forward_prefetch=case[1]["forward_prefetch"] + 1)
    assert deep.step_ns <= shallow.step_ns


def backward_prefetch_times(durations: dict[str, tuple[int, int, int]], **profile: int) -> list[int]:
    """Times of a step of three blocks with backward prefetch one and two units ahead."""
    block = CallSpec(shapes=((8, 4),), full_saved=0, kernels=(0, 0, 1))
    others = dict.fromkeys(KINDS, (0, 0, 0))
    request = tiny_request(
        tiny_model(3, block=block), tiny_cluster(RANKS), profile=tiny_profile(others | durations, **profile)
    )
    return [step_of(request, tiny_decisions(request, backward_prefetch=depth)).step_ns for depth in (1, 2)]


def test_deeper_prefetch_can_be_slower_because_it_is_issued_first():
    """The CPU launches two more operations of 50 before the backward of a block that waits for nothing else."""
    near, far = backward_prefetch_times({"embedding": (100, 0, 0), "block": (10, 500, 0)}, launch_ns=50)
    assert far == near + 2 * 50


def test_deeper_backward_prefetch_can_be_slower_because_reductions_queue_behind_it():
    """Gathers and reduce-scatters share a communicator, and compute waits for the reduction before the last."""
    durations = {"embedding": (100, 0, 0), "block": (100, 100, 0), "head": (500, 100, 0)}
    near, far = backward_prefetch_times(durations, collective_latency_ns=50)
    assert far > near


# Reduce-scatter


@given(cases())
@sampled(60)
def test_more_reduce_inputs_take_memory_and_never_time(case):
    more = case[1]["runtime"].reduce_scatter_max_input_buffers + 1
    few, many = compared(case, runtime=runtime(case, reduce_scatter_max_input_buffers=more))
    assert many.reserved >= few.reserved
    assert many.allocated >= few.allocated
    assert many.step_ns <= few.step_ns


@given(cases(), st.booleans())
@sampled(40)
def test_a_separate_group_moves_nothing_but_time(case, concurrent):
    request, fields = case
    profile = request.profile.model_copy(update={"concurrent_collectives": concurrent})
    apart = request.model_copy(update={"profile": profile}), fields
    one, two = compared(apart, runtime=runtime(case, separate_reduce_scatter_group=True))
    assert two.step_ns <= one.step_ns if concurrent else two.step_ns == one.step_ns
    assert (two.pools, two.allocated, two.collectives) == (one.pools, one.allocated, one.collectives)


@given(cases())
@sampled(40)
def test_one_reduction_for_all_micro_batches_takes_compute_memory_and_saves_collectives(case):
    every, last = compared(case, runtime=runtime(case, gradient_sync=GradientSync.LAST_MICRO_BATCH))
    assert last.pools["compute"] >= every.pools["compute"]
    assert last.collectives <= every.collectives


def test_one_reduction_for_all_micro_batches_can_lower_the_sum_of_the_pools():
    """Micro-batches that reduce hold new shards of gradients beside those that they are added to, in the reduce
    pool; whole gradients show little where the largest unit decides the peak of the compute pool anyway."""
    small, large = CallSpec(shapes=((4, 1),)), CallSpec(shapes=((4, 4), (4, 1)))
    model = tiny_model(1, block=large, embedding=None, norm=None, head=small, loss=None)
    request = tiny_request(model, tiny_cluster(RANKS), num_micro_batches=3)
    every, last = (
        step_of(request, tiny_decisions(request, runtime=RuntimeKnobs(gradient_sync=sync)))
        for sync in (GradientSync.EVERY_MICRO_BATCH, GradientSync.LAST_MICRO_BATCH)
    )
    assert last.pools["reduce"] < every.pools["reduce"]
    assert last.reserved < every.reserved


# Resharding


@given(cases(), st.data())
@sampled(60)
def test_a_unit_that_stays_gathered_never_lowers_the_compute_pool_and_is_never_slower(case, data):
    request, fields = case
    kept = data.draw(st.sampled_from(blocks_of(request)))
    resharded, gathered = compared(case, keep=[*fields["keep"], kept])
    assert gathered.pools["compute"] >= resharded.pools["compute"]
    assert gathered.collectives <= resharded.collectives
    assert gathered.step_ns <= resharded.step_ns


def test_a_unit_that_stays_gathered_can_lower_the_sum_of_the_pools():
    """It needs no all-gather buffer in backward, where deep prefetch holds several, and what it adds to the compute
    pool does not show where that pool's peak is earlier."""
    embedding = CallSpec(shapes=((1, 1),), forward_live=(10_000,), input_requires_grad=False)
    small = CallSpec(shapes=((1, 1),))
    request = tiny_request(tiny_model(4, embedding=embedding, norm=None, head=small), tiny_cluster(RANKS))
    plain, kept = (
        step_of(request, tiny_decisions(request, backward_prefetch=3, keep=keep)) for keep in ([], ["layers.1"])
    )
    assert kept.pools["compute"] == plain.pools["compute"]
    assert kept.pools["copy_in"] < plain.pools["copy_in"]
    assert kept.reserved < plain.reserved


# Activations


@given(cases(), st.data())
@sampled(40)
def test_recomputation_is_never_faster(case, data):
    request, fields = case
    path = data.draw(st.sampled_from(blocks_of(request)))
    keeping = decide(case, checkpoint=[other for other in fields["checkpoint"] if other != path])
    recomputing = keeping.model_copy(
        update={"activations": (*keeping.activations, ActivationPlan(module=path, policy=ActivationPolicy.FULL))}
    )
    assert step_of(request, recomputing).step_ns >= step_of(request, keeping).step_ns


# Units


@given(requests(), st.integers(0, 3), st.booleans())
@sampled(60)
def test_splitting_a_unit_never_lowers_the_number_of_collectives(request_, place, reshard):
    blocks = blocks_of(request_)
    joint = blocks[place % len(blocks) : place % len(blocks) + 2]
    whole = tiny_decisions(request_, reshard=reshard)
    others = [unit for unit in whole.units[:-1] if unit.modules[0] not in joint]
    merged = UnitPlan(modules=tuple(joint), reshard_after_forward=reshard)
    grouped = whole.model_copy(update={"units": (*others, merged, whole.units[-1])})
    split, together = step_of(request_, whole), step_of(request_, grouped)
    assert split.collectives >= together.collectives
    assert (split.collectives == together.collectives) is (len(joint) == 1)


@given(requests())
@sampled(30)
def test_taking_modules_out_of_the_root_never_lowers_the_number_of_collectives(request_):
    rooted = step_of(request_, tiny_decisions(request_))
    for modules in (("embed",), ("norm", "head")):
        apart = step_of(request_, tiny_decisions(request_, extra_units=[UnitPlan(modules=modules)]))
        assert apart.collectives > rooted.collectives


# Mesh


def persistent_bytes(request: PlanRequest, shard: int) -> int:
    """Shards, their gradients and the optimizer's state."""
    decisions = tiny_decisions(request, shard=shard, replicate=request.cluster.num_devices // shard)
    costs = CostModel.of(request, decisions.mesh)
    parts = partition_of(request.model, decisions)
    shards = local_shards(parts, meshes_of(decisions, parts))
    return sum(
        2 * elements * parameter.dtype.itemsize_bytes + costs.optimizer_state_bytes(name, parameter, elements)
        for name, parameter, elements in shards
    )


@given(
    shapes=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=3),
    optimizer=st.sampled_from([OptimizerName.ADAMW, OptimizerName.SGD_MOMENTUM, OptimizerName.MUON]),
)
@sampled(60)
def test_a_larger_shard_degree_never_raises_persistent_bytes(shapes, optimizer):
    request = tiny_request(
        tiny_model(2, block=CallSpec(shapes=tuple(shapes), full_saved=0)), tiny_cluster(16), optimizer=optimizer
    )
    sizes = [persistent_bytes(request, shard) for shard in (1, 2, 4, 8, 16)]
    assert sizes == sorted(sizes, reverse=True)


def test_eight_bit_state_can_grow_with_the_shard_degree():
    """(6, 1024): 6,144 elements on one rank are held in 8 bits, 3,072 on each of two in float32."""
    parameter = Parameter(name="w", shape=(6, 1_024))
    costs = CostModel.of(
        tiny_request(cluster=tiny_cluster(2), optimizer=OptimizerName.ADAMW_8BIT),
        tiny_decisions(tiny_request()).mesh,
    )
    whole, half = (costs.optimizer_state_bytes("w", parameter, elements) for elements in (6_144, 3_072))
    assert (whole, half) == (12_480, 24_576)


# Costs


@given(cases(), st.integers(2, 5))
@sampled(40)
def test_faster_links_never_slow_a_step_down(case, factor):
    request, _ = case
    plain = request.profile.model_copy(update={"collectives": ()})
    times = []
    for bytes_per_s in (10**9, factor * 10**9):
        cluster = tiny_cluster(
            RANKS,
            devices_per_node=request.cluster.node_groups[0].devices_per_node,
            spec=ClusterSpec(link_bytes_per_s=bytes_per_s, link_latency_ns=50),
        )
        changed = request.model_copy(update={"cluster": cluster, "profile": plain})
        times.append(step_of(changed, decide(case)).step_ns)
    assert times[1] <= times[0]


@given(cases(), st.integers(1, 100))
@sampled(40)
def test_dearer_launches_never_speed_a_step_up(case, extra_ns):
    request, _ = case
    profile = request.profile.model_copy(update={"launch_ns": request.profile.launch_ns + extra_ns})
    dearer = step_of(request.model_copy(update={"profile": profile}), decide(case))
    cheap = step_of(request, decide(case))
    assert dearer.step_ns >= cheap.step_ns
    assert (dearer.pools, dearer.collectives) == (cheap.pools, cheap.collectives)


@given(cases())
@sampled(40)
def test_a_step_takes_at_least_the_work_of_each_stream_and_link(case):
    request, _ = case
    for program, _ in program_of(request, decide(case)).programs:
        run = replay(program)
        assert all(use.idle_ns >= 0 for use in run.uses().values())
        stalled = sum(stall.duration_ns for stall in run.stalls)
        assert run.uses()[Stream.COMPUTE].busy_ns + stalled == run.micro_batch_ns
