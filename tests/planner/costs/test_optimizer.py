import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.optimizer import (
    cpu_optimizer_ns,
    optimizer_ns,
    optimizer_state_bytes,
    optimizer_transient_bytes,
    state_notes,
    trainable_elements,
)
from planner.schema import (
    DeviceSheet,
    DType,
    InconsistentRequest,
    OptimizerGroup,
    OptimizerName,
    Parameter,
    UnsupportedField,
    Workload,
)

GIB = 2**30
SHEET = DeviceSheet(
    name="sheet",
    memory_bytes=10**9,
    memory_bytes_per_s=10**12,
    flops_per_s={DType.FLOAT32: 10**12, DType.BFLOAT16: 10**14},
)


def workload(*groups, **fields):
    groups = groups or (OptimizerGroup(**fields),)
    return Workload(micro_batch=1, sequence=1, global_batch=1, optimizer_groups=groups)


def parameter(*shape, dtype=DType.FLOAT32, requires_grad=True):
    return Parameter(name="w", shape=shape, dtype=dtype, requires_grad=requires_grad)


def state(optimizer, shape, elements, dtype=DType.FLOAT32, **fields):
    return optimizer_state_bytes(
        workload(optimizer=optimizer, **fields), "w", parameter(*shape, dtype=dtype), elements
    )


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_element"),
    [("adamw", 8), ("adam", 8), ("sgd", 0), ("sgd_momentum", 4), ("muon", 4)],
)
def test_moments_are_in_storage_dtype(optimizer, bytes_per_element):
    assert state(optimizer, (64, 32), 1_000) == 1_000 * bytes_per_element
    assert state(optimizer, (64, 32), 1_000, dtype=DType.BFLOAT16) == 1_000 * bytes_per_element // 2


def test_state_dtype_overrides_storage():
    assert state("adamw", (64, 32), 1_000, state_dtype=DType.BFLOAT16) == 4_000


def test_adafactor_keeps_rows_and_columns():
    assert state("adafactor", (64, 32), 16 * 32) == (16 + 32) * 4
    assert state("adafactor", (4, 64, 32), 2 * 64 * 32) == (2 * 64 + 2 * 32) * 4
    assert state("adafactor", (64,), 16) == 16 * 4
    assert state("adafactor", (64, 32), 0) == 0


def test_frozen_parameters_have_no_state_and_need_no_group():
    frozen = parameter(8, requires_grad=False)
    assert optimizer_state_bytes(workload(parameters="nothing"), "w", frozen, 8) == 0


def test_state_precision_depends_on_the_size_of_the_shard():
    # (6, 1024): 6,144 elements on one rank are 8-bit; 3,072 on two ranks are float32.
    assert state("adamw_8bit", (6, 1_024), 6_144) == 2 * 6_144 + 2 * 24 * 4
    assert state("adamw_8bit", (6, 1_024), 3_072) == 8 * 3_072
    assert state("adamw_8bit", (65, 64), 4_160) == 8 * 4_160
    assert state("adamw_8bit", (64, 64), 4_096) == 2 * 4_096 + 2 * 16 * 4


def test_the_reason_for_wide_state_is_given():
    eight_bit = workload(optimizer="adamw_8bit")
    shards = [("a", parameter(6, 1_024), 3_072), ("b", parameter(64, 64), 4_096), ("c", parameter(8), 8)]
    (note,) = state_notes(eight_bit, shards)
    assert note.startswith("2 parameters keep float32 moments under adamw_8bit, 8 bytes per element")
    assert "'a' has 3072" in note
    assert state_notes(eight_bit, shards[1:2]) == ()
    assert state_notes(workload(), shards) == ()


def test_the_first_matching_group_counts():
    groups = (
        OptimizerGroup(parameters="*.norm.*", optimizer=OptimizerName.SGD),
        OptimizerGroup(parameters="layers.*", optimizer=OptimizerName.SGD_MOMENTUM),
        OptimizerGroup(),
    )
    sizes = [
        optimizer_state_bytes(workload(*groups), name, parameter(8), 8)
        for name in ("layers.0.norm.weight", "layers.0.w", "head.weight")
    ]
    assert sizes == [0, 32, 64]


def test_a_trainable_parameter_outside_all_groups_is_refused():
    outside = workload(OptimizerGroup(parameters="layers.*"), OptimizerGroup(parameters="Head.*"))
    with pytest.raises(InconsistentRequest) as error:
        optimizer_state_bytes(outside, "head.weight", parameter(8), 8)
    assert "'head.weight' is in no group of workload.optimizer_groups ('layers.*', 'Head.*')" in str(error.value)
    assert "or freeze the parameter" in str(error.value)


def test_foreach_raises_the_peak_of_the_step():
    # 6e9 parameters on 2 ranks, 52 GiB, backward peak 5 GiB above 16 bytes per parameter of state.
    shards = [(f"layers.{index}.w", parameter(10_000, 10_000), 50_000_000) for index in range(60)]
    moments = sum(optimizer_state_bytes(workload(), name, p, elements) for name, p, elements in shards)
    state_bytes = 8 * 3_000_000_000 + moments
    assert state_bytes / GIB == pytest.approx(44.703, abs=0.001)
    extra = {
        implementation: optimizer_transient_bytes(workload(implementation=implementation), shards)
        for implementation in ("foreach", "fused", "for_loop")
    }
    assert extra["foreach"] / GIB == pytest.approx(11.176, abs=0.001)
    assert (state_bytes + extra["foreach"]) / GIB == pytest.approx(55.879, abs=0.001)
    assert extra["fused"] == 0
    assert extra["for_loop"] == 3 * 4 * 50_000_000
    assert state_bytes + extra["for_loop"] < 52 * GIB < state_bytes + extra["foreach"]


def test_groups_step_one_after_the_other():
    groups = (
        OptimizerGroup(parameters="a*", implementation="foreach"),
        OptimizerGroup(parameters="b*", implementation="for_loop"),
        OptimizerGroup(parameters="c*", implementation="fused"),
    )
    shards = [
        (name, parameter(size), size) for name, size in (("a1", 10), ("a2", 20), ("b1", 12), ("b2", 5), ("c", 99))
    ]
    assert optimizer_transient_bytes(workload(*groups), shards) == 4 * 30
    assert optimizer_transient_bytes(workload(*groups), shards[2:]) == 4 * 2 * 12
    assert optimizer_transient_bytes(workload(*groups), shards[4:]) == 0


def test_adafactor_has_no_fused_step():
    shards = [("w", parameter(8, 8), 64)]
    assert optimizer_transient_bytes(workload(optimizer="adafactor", implementation="fused"), shards) == 4 * 64


@pytest.mark.parametrize("optimizer", ["adamw", "adam"])
def test_a_loop_holds_two_copies_of_a_shard_and_one_of_the_shard_before(optimizer):
    shards = [(name, parameter(size), size) for name, size in (("a", 100), ("b", 8), ("c", 100), ("d", 90))]
    job = workload(optimizer=optimizer, implementation="for_loop")
    assert optimizer_transient_bytes(job, shards[:3]) == 4 * (2 * 100 + 8)
    assert optimizer_transient_bytes(job, shards) == 4 * (2 * 90 + 100)


@pytest.mark.parametrize("optimizer", ["sgd", "sgd_momentum"])
@pytest.mark.parametrize("implementation", ["foreach", "for_loop"])
def test_sgd_works_in_place(optimizer, implementation):
    job = workload(optimizer=optimizer, implementation=implementation)
    assert optimizer_transient_bytes(job, [("w", parameter(8), 8)]) == 0


@pytest.mark.parametrize("optimizer", ["adamw", "adam"])
def test_only_fused_adam_counts_steps_on_the_device(optimizer):
    assert state(optimizer, (64,), 16, implementation="fused") == 2 * 16 * 4 + 4
    assert state(optimizer, (64,), 16, implementation="for_loop") == 2 * 16 * 4
    assert state("sgd_momentum", (64,), 16, implementation="foreach") == 16 * 4


def test_frozen_shards_need_no_copy():
    assert optimizer_transient_bytes(workload(), [("w", parameter(8, requires_grad=False), 8)]) == 0
    assert optimizer_transient_bytes(workload(), []) == 0


def test_a_fused_step_moves_seven_tensors_and_foreach_twenty():
    # Shards of 40e6 bytes at 80 % of 1e12 bytes per second: 50 us for each tensor read or written.
    shards = [("w", parameter(10**7), 10**7)]
    assert optimizer_ns(workload(implementation="fused"), shards, SHEET, launch_ns=0) == 7 * 50_000
    assert optimizer_ns(workload(implementation="foreach"), shards, SHEET, launch_ns=0) == 20 * 50_000


def test_small_parameters_in_a_loop_are_bound_by_launches():
    shards = [(f"w{index}", parameter(4), 4) for index in range(100)]
    looped = optimizer_ns(workload(implementation="for_loop"), shards, SHEET, launch_ns=5_000)
    assert looped == 100 * 8 * 5_000
    assert optimizer_ns(workload(implementation="fused"), shards, SHEET, launch_ns=5_000) < 1_000


def test_muon_pays_for_newton_schulz_on_its_rows():
    wide, tall = parameter(1_000, 2_000), parameter(2_000, 1_000)
    flops = {
        "wide": 5 * (2 * 100 * 1_000 * 2_000 * 2 + 2 * 100 * 1_000**2),
        "tall": 5 * (2 * 100 * 1_000 * 1_000 * 2 + 2 * 1_000**3),
    }
    for name, matrix, elements in (("wide", wide, 100 * 2_000), ("tall", tall, 100 * 1_000)):
        moved_ns = -(-11 * 4 * elements * 10 // 8_000)
        muon = optimizer_ns(workload(optimizer="muon"), [("w", matrix, elements)], SHEET, launch_ns=0)
        assert muon == moved_ns + -(-flops[name] * 10**9 // (70 * 10**12))
    assert optimizer_ns(workload(optimizer="muon"), [("w", wide, 0)], SHEET, launch_ns=0) == 0


def test_muon_goes_matrix_by_matrix():
    # On one rank: the update in float32, two matrices and two Gram matrices in bfloat16.
    large, small = parameter(1_000, 2_000), parameter(10, 20)
    shards = [("large", large, 2_000_000), ("small", small, 200)]
    assert optimizer_transient_bytes(workload(optimizer="muon"), shards) == 2_000_000 * (4 + 2 + 2) + 2 * 2_000_000
    assert optimizer_transient_bytes(workload(optimizer="muon"), [("w", large, 0)]) == 0


def test_the_host_moves_the_same_bytes_and_does_no_matrix_products():
    shards = [("w", parameter(10**7), 10**7)]
    assert cpu_optimizer_ns(workload(implementation="fused"), shards, bytes_per_s=10**9) == 7 * 40_000_000
    assert cpu_optimizer_ns(workload(implementation="foreach"), shards, bytes_per_s=10**9) == 20 * 40_000_000
    with pytest.raises(UnsupportedField, match=r"optimizer_groups\[0\]\.optimizer.*'w' on the device"):
        cpu_optimizer_ns(workload(optimizer="muon"), shards, bytes_per_s=10**9)


@given(
    optimizer=st.sampled_from(OptimizerName),
    implementation=st.sampled_from(["foreach", "fused", "for_loop"]),
    blocks=st.tuples(st.integers(16, 2_000), st.integers(16, 2_000)),
)
def test_larger_shards_never_cost_less(optimizer, implementation, blocks):
    # Whole 8-bit blocks: below them a smaller shard can need more state, which is the optimizer's own law.
    small, large = (256 * number for number in sorted(blocks))
    job = workload(optimizer=optimizer, implementation=implementation)
    whole = parameter(2_000, 256)
    for cost in (
        lambda elements: optimizer_state_bytes(job, "w", whole, elements),
        lambda elements: optimizer_transient_bytes(job, [("w", whole, elements)]),
        lambda elements: optimizer_ns(job, [("w", whole, elements)], SHEET, launch_ns=10),
    ):
        assert cost(small) <= cost(large)


def test_only_trainable_elements_are_updated():
    shards = [("a", parameter(8), 4), ("b", parameter(8, requires_grad=False), 4)]
    assert trainable_elements(shards) == 4
