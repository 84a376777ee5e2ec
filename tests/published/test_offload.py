"""Parameters on the host: what they cost, and when not to."""

import pytest

from planner.plan import make_plan
from planner.schema import (
    DType,
    InconsistentRequest,
    MemoryCategory,
    PlanRequest,
    Precision,
    StateTier,
    UnsupportedField,
)
from planner.simulate import predict
from tests.planner.factories import CallSpec
from tests.published.steps import GIB, Step, block_model, step

RANKS, NUM_UNITS, ELEMENTS = 8, 13, 1_000_000_000
BF16_FP32 = Precision(param_dtype=DType.BFLOAT16, reduce_dtype=DType.FLOAT32)
SECOND = 10**9


def thirteen_billion() -> PlanRequest:
    """13e9 trainable parameters on one host of 8 ranks, whose cores update 0.25e9 a second for each rank."""
    request = step(
        block_model(NUM_UNITS, CallSpec(shapes=((ELEMENTS,),)), root=None), RANKS, precision=BF16_FP32
    ).request
    (group,) = request.cluster.node_groups
    host = group.model_copy(update={"host_memory_bytes": 256 * GIB, "host_cores": 64})
    assert request.profile is not None
    copies = tuple(
        {"direction": direction, "bytes_per_s": 10**15} for direction in ("host_to_device", "device_to_host")
    )
    profile = request.profile.model_validate(
        request.profile.model_dump()
        | {"cpu_optimizer_parameters_per_s_per_core": 250_000_000 * RANKS // 64}
        | {"copies": (*(copy.model_dump() for copy in request.profile.copies), *copies)}
    )
    cluster = request.cluster.model_copy(update={"node_groups": (host,)})
    return request.model_copy(update={"cluster": cluster, "profile": profile})


def on(tier: StateTier) -> Step:
    request = thirteen_billion()
    decisions = step(request.model, RANKS, precision=BF16_FP32).decisions
    units = tuple(
        unit.model_copy(update={"parameter_tier": tier, "optimizer_tier": tier}) for unit in decisions.units
    )
    return Step(request=request, decisions=decisions.model_copy(update={"units": units}))


def test_the_optimizer_on_the_host_takes_its_time() -> None:
    """1.625e9 parameters a rank at 0.25e9 a second: 6.5 s a step (reported case 11)."""
    host, device = (predict(one.request, one.decisions) for one in (on(StateTier.HOST), on(StateTier.DEVICE)))
    assert NUM_UNITS * ELEMENTS // RANKS == 1_625_000_000
    assert host.breakdown.optimizer_ns == 6.5 * SECOND
    assert device.breakdown.optimizer_ns == 1.625 * SECOND  # 1e9 a second, as the profile of the device says


def test_state_is_on_the_host() -> None:
    """16 B for each of 13e9 parameters: 193.715 GiB on a host of 8 ranks (reported case 11).

    While Adam steps with `foreach`, one more copy of the shards is there.
    """
    found = predict(on(StateTier.HOST).request, on(StateTier.HOST).decisions)
    assert round(RANKS * found.host_bytes / GIB * 16 / 20, 3) == 193.715
    device = found.peak.by_category_bytes
    assert not {MemoryCategory.PARAMETERS, MemoryCategory.OPTIMIZER} & device.keys()


def test_no_offload_where_the_model_fits_without() -> None:
    """If the model fits without offload the plan must not offload (reported case 11)."""
    decisions = make_plan(thirteen_billion()).body.decisions
    assert decisions is not None
    assert {unit.parameter_tier for unit in decisions.units} == {StateTier.DEVICE}


def test_parameters_on_a_drive_are_refused() -> None:
    """FSDP2 has no such tier, so nothing is predicted rather than something wrong."""
    found = on(StateTier.DEVICE)
    first, *others = found.decisions.units
    units = (first.model_copy(update={"parameter_tier": StateTier.NVME}), *others)
    with pytest.raises(UnsupportedField, match="parameter_tier"):
        predict(found.request, found.decisions.model_copy(update={"units": units}))


def state_away(tier: StateTier, **drive: int) -> Step:
    """The same with its parameters on the device."""
    found = on(StateTier.DEVICE)
    (group,) = found.request.cluster.node_groups
    cluster = found.request.cluster.model_copy(update={"node_groups": (group.model_copy(update=drive),)})
    units = tuple(unit.model_copy(update={"optimizer_tier": tier}) for unit in found.decisions.units)
    return Step(
        request=found.request.model_copy(update={"cluster": cluster}),
        decisions=found.decisions.model_copy(update={"units": units}),
    )


def test_state_alone_on_the_host_frees_half_and_costs_the_same_step() -> None:
    """8 of 16 B for each parameter leave the device; a unit is fetched while another is updated."""
    whole, device, state = (
        predict(one.request, one.decisions)
        for one in (on(StateTier.HOST), on(StateTier.DEVICE), state_away(StateTier.HOST))
    )
    shard_bytes = NUM_UNITS * ELEMENTS // RANKS * 4
    freed = device.peak.optimizer_step_bytes - state.peak.optimizer_step_bytes
    assert freed == 3 * shard_bytes  # two moments, and the copy that foreach Adam holds in its step
    assert state.breakdown.optimizer_ns == pytest.approx(6.5 * SECOND, rel=1e-6)
    buffers = 3 * 2 * ELEMENTS // RANKS * 4
    assert state.host_bytes == 2 * shard_bytes + buffers + ELEMENTS // RANKS * 4
    assert state.step_time_ns < whole.step_time_ns


def test_state_on_a_drive() -> None:
    """Reported case 12 with Adam's 8 B: each read and written once a step, side by side, by all ranks of a host."""
    drive = {"nvme_bytes": 2**42, "nvme_read_bytes_per_s": 3 * 10**9, "nvme_write_bytes_per_s": 2 * 10**9}
    found = state_away(StateTier.NVME, **drive)
    predicted = predict(found.request, found.decisions)
    state_bytes = 8 * NUM_UNITS * ELEMENTS
    written_ns = state_bytes // 2  # 2 bytes a nanosecond
    unit_ns = written_ns // NUM_UNITS
    assert predicted.breakdown.optimizer_ns >= written_ns
    assert predicted.breakdown.optimizer_ns - written_ns < 2 * unit_ns
    assert 0 <= RANKS * predicted.nvme_bytes - 2 * state_bytes < RANKS * NUM_UNITS * 2 * 4096
    assert predicted.host_bytes == (3 * 2 * 2 + 1) * 4 * ELEMENTS // RANKS


def test_a_drive_needs_a_bandwidth() -> None:
    found = state_away(StateTier.NVME)
    with pytest.raises(InconsistentRequest, match="optimizer state on nvme has no cost"):
        predict(found.request, found.decisions)
