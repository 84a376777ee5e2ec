"""State, transient memory and time of the optimizer step, for the shards that one rank holds."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from planner.catalog.atoms import EIGHT_BIT_BLOCK
from planner.costs.efficiency import COMPUTE_PERCENT, MEMORY_PERCENT
from planner.costs.muon import MuonStep
from planner.costs.owned_muon import OwnedRound, owned_rounds
from planner.costs.rates import time_ns
from planner.schema import (
    DeviceSheet,
    DType,
    InconsistentRequest,
    OptimizerGroup,
    OptimizerName,
    Parameter,
    Profile,
    RegionKind,
    UnsupportedField,
    Workload,
)

Shard = tuple[str, Parameter, int]
"""Full name, parameter and number of elements of it on this rank."""

EIGHT_BIT_LEAST_ELEMENTS = 4_096
"""Smaller shards keep float32 moments (torchao, https://github.com/pytorch/ao, `optim`)."""

_FLOAT32 = DType.FLOAT32.itemsize_bytes
_MOMENTS = {
    OptimizerName.ADAMW: 2,
    OptimizerName.ADAM: 2,
    OptimizerName.SGD: 0,
    OptimizerName.SGD_MOMENTUM: 1,
    OptimizerName.MUON: 1,
}
# Tensors read or written per parameter when every operation is a kernel of its own, as foreach and for_loop do
# (counted in torch 2.13, `torch.optim`); fused kernels read gradient, parameter and moments and write the last two.
_SEPARATE_PASSES = {
    OptimizerName.ADAMW: 20,
    OptimizerName.ADAM: 18,
    OptimizerName.SGD: 3,
    OptimizerName.SGD_MOMENTUM: 8,
    OptimizerName.ADAFACTOR: 21,
    OptimizerName.ADAMW_8BIT: 0,
    OptimizerName.MUON: 11,
}
_ADAM = frozenset({OptimizerName.ADAMW, OptimizerName.ADAM})
_IN_PLACE = frozenset({OptimizerName.SGD, OptimizerName.SGD_MOMENTUM})
_KERNELS_PER_PARAMETER = 8
NO_OWNERS: Mapping[str, int] = MappingProxyType({})


def group_of(workload: Workload, name: str) -> OptimizerGroup:
    """The first group whose glob matches the full name of a trainable parameter.

    Raises:
        InconsistentRequest: none matches.
    """
    return workload.optimizer_groups[_place_of(workload, name)]


def _place_of(workload: Workload, name: str) -> int:
    for place, group in enumerate(workload.optimizer_groups):
        if group.holds(name):
            return place
    globs = ", ".join(repr(group.parameters) for group in workload.optimizer_groups)
    raise InconsistentRequest(
        f"trainable parameter {name!r} is in no group of workload.optimizer_groups ({globs}); add a group with the "
        "glob '*' at the end, or freeze the parameter"
    )


def usable_rates(profile: Profile | None, workload: Workload) -> Profile | None:
    """The profile, without its rates of optimizer steps where some group has another optimizer than they."""
    if profile is None or not profile.optimizer:
        return profile
    used = {f"{group.optimizer}/{group.implementation}" for group in workload.optimizer_groups}
    if used == {profile.optimizer}:
        return profile
    return profile.model_copy(
        update={"optimizer_parameters_per_s": None, "cpu_optimizer_parameters_per_s_per_core": None}
    )


def largest_shard_degree(workload: Workload, parameters: Iterable[tuple[str, Parameter]]) -> int | None:
    """Ranks over which torch's Muon takes its matrices: no more than the fewest rows; None without Muon.

    Raises:
        InconsistentRequest: a Muon group holds something that is no matrix, which torch 2.13 refuses.
    """
    rows: list[int] = []
    for name, parameter in parameters:
        if not parameter.requires_grad or group_of(workload, name).optimizer is not OptimizerName.MUON:
            continue
        if len(parameter.shape) != 2:
            raise InconsistentRequest(
                f"workload.optimizer_groups: {name!r} of shape {list(parameter.shape)} is in a Muon group, and "
                "torch's Muon takes matrices alone; put it in a group of another optimizer, before that one"
            )
        rows.append(parameter.shape[0])
    return min(rows, default=None)


def muon_matrices(workload: Workload, parameters: Iterable[tuple[str, Parameter]]) -> dict[str, Parameter]:
    """Trainable parameters of Muon groups by full name, each under its first name; unused ones are among them.

    Raises:
        InconsistentRequest: no group matches a trainable parameter.
    """
    return {
        name: parameter
        for name, parameter in parameters
        if parameter.requires_grad
        and parameter.tied_to is None
        and group_of(workload, name).optimizer is OptimizerName.MUON
    }


def is_eight_bit(shard_elements: int) -> bool:
    """Whether an 8-bit optimizer can keep the moments of a shard in 8 bits."""
    return shard_elements >= EIGHT_BIT_LEAST_ELEMENTS and shard_elements % EIGHT_BIT_BLOCK == 0


def optimizer_state_bytes(workload: Workload, name: str, parameter: Parameter, shard_elements: int) -> int:
    """Bytes that the optimizer keeps for a shard on the device; 0 for a frozen parameter.

    Fused Adam counts its steps there, in one float32 for each parameter; other implementations on the host.

    Raises:
        InconsistentRequest: no group matches a trainable parameter.
    """
    if not parameter.requires_grad:
        return 0
    group = group_of(workload, name)
    counter = _FLOAT32 if group.optimizer in _ADAM and group.implementation == "fused" else 0
    return _moments_bytes(group, parameter, shard_elements) + counter


def optimizer_transient_bytes(
    workload: Workload,
    shards: Sequence[Shard],
    num_ranks: int | None = None,
    owners: Mapping[str, int] = NO_OWNERS,
) -> int:
    """Most bytes that the step needs beyond state and gradients.

    Groups step one after the other, so the largest group counts. SGD without weight decay works in place and needs
    nothing. Of Adam, `foreach` holds a copy of all shards of its group in their storage dtype, `for_loop`
    two of the shard that it is at and one of the shard before, `fused` nothing. Muon (see `MuonStep`) and 8-bit
    AdamW go parameter by parameter whatever the group says, Muon with owners round by round (`OwnedRound`);
    Adafactor has no fused step and takes `foreach`.

    Args:
        workload: its optimizer groups.
        shards: in the order in which the module registers the parameters.
        num_ranks: shard degree, for the padding of uneven matrices that Muon gathers.
        owners: of Muon's matrices.

    Raises:
        InconsistentRequest: no group matches a trainable parameter.
    """
    largest = 0
    for group, together in _by_group(workload, shards):
        largest = max([largest, *(round_.transient_bytes for round_ in owned_rounds(owners, together))])
        members = [shard for shard in together if shard[0] not in owners]
        sizes = [_copy_bytes(group, parameter, elements, num_ranks) for _, parameter, elements in members]
        match _implementation(group):
            case _ if group.optimizer in _IN_PLACE:
                pass
            case "foreach":
                largest = max(largest, sum(sizes))
            case "for_loop" if group.optimizer in _ADAM:
                largest = max([largest, *(2 * size + before for before, size in pairwise([0, *sizes]))])
            case "for_loop":
                largest = max([largest, *sizes])
            case _:
                pass
    return largest


def optimizer_ns(
    workload: Workload,
    shards: Sequence[Shard],
    device: DeviceSheet,
    *,
    launch_ns: int,
    owners: Mapping[str, int] = NO_OWNERS,
) -> int:
    """Time of one step on this rank without what it communicates, from data sheets.

    Bytes that the kernels move over the attainable memory bandwidth; for Muon also the FLOPs of its Newton-Schulz
    iteration, of matrices with owners those of the busiest in each round; for `for_loop` at least the launches.

    Raises:
        InconsistentRequest: no group matches a trainable parameter.
    """
    total = 0
    for group, members in _by_group(workload, shards):
        moved = sum(_moved_bytes(group, parameter, elements) for _, parameter, elements in members)
        duration = time_ns(moved, device.memory_bytes_per_s, percent=MEMORY_PERCENT)
        if group.optimizer is OptimizerName.MUON:
            apart = [MuonStep.of(parameter, size) for name, parameter, size in members if name not in owners]
            flops = sum(step.flops for step in apart)
            flops += sum(step.flops for step in owned_rounds(owners, members))
            peak = device.flops_per_s.get(DType.BFLOAT16) or max(device.flops_per_s.values())
            duration += time_ns(flops, peak, percent=COMPUTE_PERCENT[RegionKind.MATMUL])
        if _implementation(group) == "for_loop":
            duration = max(duration, len(members) * _KERNELS_PER_PARAMETER * launch_ns)
        total += duration
    return total


def cpu_optimizer_ns(workload: Workload, shards: Sequence[Shard], *, bytes_per_s: int) -> int:
    """Duration of the step over shards on the host, whose memory moves `bytes_per_s` for one rank.

    Raises:
        InconsistentRequest: no group matches a trainable parameter.
        UnsupportedField: the group is Muon's, whose matrix products have no known rate there.
    """
    moved = 0
    for group, members in _by_group(workload, shards):
        if group.optimizer is OptimizerName.MUON:
            raise UnsupportedField(
                f"workload.optimizer_groups[{workload.optimizer_groups.index(group)}].optimizer",
                f"'muon' has no cost on the host; keep the unit of {members[0][0]!r} on the device",
            )
        moved += sum(_moved_bytes(group, parameter, elements) for _, parameter, elements in members)
    return time_ns(moved, bytes_per_s)


def require_adam(workload: Workload, units: Sequence[Sequence[Shard]]) -> None:
    """Refuse optimizers whose state the client cannot keep off the device.

    Raises:
        UnsupportedField: a group of one of these parameters is not Adam's or AdamW's, with state in the type of the
            parameter.
        InconsistentRequest: no group matches a trainable parameter.
    """
    for shards in units:
        for name, parameter, _ in shards:
            group = group_of(workload, name)
            if group.optimizer not in _ADAM or group.state_dtype not in (None, parameter.dtype):
                raise UnsupportedField(
                    f"workload.optimizer_groups[{workload.optimizer_groups.index(group)}]",
                    f"the state of {name!r} can be off the device with Adam or AdamW alone, in the type of the "
                    "parameter; set optimizer_tier of its unit to device",
                )


def muon_steps(
    workload: Workload, shards: Sequence[Shard], num_ranks: int, owners: Mapping[str, int] = NO_OWNERS
) -> list[MuonStep]:
    """What Muon does for each of its matrices without an owner; errors as in `optimizer_ns`."""
    return [
        MuonStep.of(parameter, elements, num_ranks)
        for group, members in _by_group(workload, shards)
        if group.optimizer is OptimizerName.MUON
        for name, parameter, elements in members
        if elements and name not in owners
    ]


def muon_rounds(workload: Workload, shards: Sequence[Shard], owners: Mapping[str, int]) -> list[OwnedRound]:
    """What Muon does for those with one; errors as in `optimizer_ns`."""
    return [round_ for _, members in _by_group(workload, shards) for round_ in owned_rounds(owners, members)]


def trainable_elements(shards: Sequence[Shard]) -> int:
    """Elements that this rank's step updates."""
    return sum(elements for _, parameter, elements in shards if parameter.requires_grad)


def state_notes(workload: Workload, shards: Sequence[Shard]) -> tuple[str, ...]:
    """Why state is larger than the optimizer's name promises, in words for the plan's reasons.

    Raises:
        InconsistentRequest: no group matches a trainable parameter.
    """
    wide = [
        (name, elements)
        for group, members in _by_group(workload, shards)
        if group.optimizer is OptimizerName.ADAMW_8BIT
        for name, _, elements in members
        if elements and not is_eight_bit(elements)
    ]
    if not wide:
        return ()
    name, elements = wide[0]
    return (
        f"{len(wide)} parameters keep float32 moments under adamw_8bit, 8 bytes per element: a shard needs at "
        f"least {EIGHT_BIT_LEAST_ELEMENTS} elements and a multiple of {EIGHT_BIT_BLOCK}; {name!r} has {elements}",
    )


def _by_group(workload: Workload, shards: Sequence[Shard]) -> list[tuple[OptimizerGroup, list[Shard]]]:
    members: list[list[Shard]] = [[] for _ in workload.optimizer_groups]
    for shard in shards:
        name, parameter, _ = shard
        if parameter.requires_grad:
            members[_place_of(workload, name)].append(shard)
    return [(group, found) for group, found in zip(workload.optimizer_groups, members, strict=True) if found]


def _implementation(group: OptimizerGroup) -> str:
    """How the group really steps: some optimizers have one way only, and Adafactor has no fused kernel."""
    match group.optimizer:
        case OptimizerName.MUON | OptimizerName.ADAMW_8BIT:
            return "for_loop"
        case OptimizerName.ADAFACTOR if group.implementation == "fused":
            return "foreach"
        case _:
            return group.implementation


def _moments_bytes(group: OptimizerGroup, parameter: Parameter, elements: int) -> int:
    if group.optimizer is OptimizerName.ADAMW_8BIT:
        return _eight_bit_bytes(elements)
    itemsize = (group.state_dtype or parameter.dtype).itemsize_bytes
    if group.optimizer is OptimizerName.ADAFACTOR:
        return _adafactor_elements(parameter, elements) * itemsize
    return _MOMENTS[group.optimizer] * elements * itemsize


def _eight_bit_bytes(elements: int) -> int:
    """Two moments: a byte per element and a float32 scale per block each, or plain float32."""
    if is_eight_bit(elements):
        return 2 * (elements + elements // EIGHT_BIT_BLOCK * _FLOAT32)
    return 2 * elements * _FLOAT32


def _adafactor_elements(parameter: Parameter, elements: int) -> int:
    """Row and column factors of each matrix of a shard cut along dim 0; a full second moment for vectors."""
    if len(parameter.shape) < 2 or not elements:
        return elements
    rows, columns = parameter.shape[-2:]
    row_factors = -(-elements // columns)
    column_factors = columns if len(parameter.shape) == 2 else -(-elements // rows)
    return row_factors + column_factors


def _copy_bytes(group: OptimizerGroup, parameter: Parameter, elements: int, num_ranks: int | None) -> int:
    if group.optimizer is OptimizerName.MUON:
        return MuonStep.of(parameter, elements, num_ranks).transient_bytes if elements else 0
    return elements * parameter.dtype.itemsize_bytes


def _moved_bytes(group: OptimizerGroup, parameter: Parameter, elements: int) -> int:
    size = elements * parameter.dtype.itemsize_bytes
    once = 3 * size + 2 * _moments_bytes(group, parameter, elements)
    if _implementation(group) == "fused":
        return once
    return max(once, _SEPARATE_PASSES[group.optimizer] * size)
