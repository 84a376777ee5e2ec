"""What the contract declares and this planner does not honour is refused with its path, never ignored."""

from collections.abc import Iterator

from planner.catalog.torch_versions import INTEGERS, KNOBS, RELEASES, supported, used_knobs
from planner.profiles.against import refuse_impossible
from planner.schema import (
    LOSS_PATH,
    OUTPUT_PATH,
    CallKind,
    Decisions,
    DType,
    InconsistentRequest,
    ModelDescription,
    OptimizerGroup,
    OptimizerName,
    Parameter,
    PlanRequest,
    Polynomial,
    UnsupportedField,
)
from planner.schema.versions import release_of
from planner.schema.workload import matches_any

MAX_DEVICES = 2**17
"""Largest world that is planned; costs are worked out group by group, and nothing larger has been built."""
COMPUTE_DTYPES = frozenset({DType.FLOAT64, DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})
"""Element types that autograd and optimizers of torch compute in."""


def refuse_unsupported(request: PlanRequest, *, has_warm_start: bool = False) -> None:
    """Raise UnsupportedField or InconsistentRequest for the first thing that cannot be planned."""
    refuse_unmodelled(request)
    if request.warm_start is not None and not has_warm_start:
        raise UnsupportedField(
            "warm_start", "ask a service that has the plan, since its decisions start the search"
        )


def refuse_unmodelled(request: PlanRequest) -> None:
    """Raise UnsupportedField or InconsistentRequest for the first thing whose cost cannot be predicted.

    Raises ImplausibleProfile for measurements that cannot be true.
    """
    _model(request)
    _parameters(request)
    _workload(request)
    _cluster(request)
    refuse_impossible(request)


def _model(request: PlanRequest) -> None:
    model = request.model
    if model.states:
        raise UnsupportedField("model.states[0]", "leave further training states out")
    if all(call.path in (OUTPUT_PATH, LOSS_PATH) for call in model.calls):
        raise InconsistentRequest("model.calls: nothing runs; describe the model with an input that it can run on")
    for key, kind in model.kinds.items():
        if kind.branches:
            raise UnsupportedField(f"model.kinds.{key}.branches", "describe the model with every branch taken")
    batch, sequence = request.workload.micro_batch, request.workload.sequence
    for path, polynomial in _polynomials(request):
        if polynomial.is_negative_at(batch, sequence):
            raise InconsistentRequest(
                f"model.{path} is below 0 at micro-batch {batch} and sequence {sequence}; describe the model at "
                "points nearer to these"
            )


def _polynomials(request: PlanRequest) -> Iterator[tuple[str, Polynomial]]:
    model = request.model
    yield "inputs_bytes", model.inputs_bytes
    for index, tensor in enumerate(model.shared):
        yield f"shared[{index}].size_bytes", tensor.size_bytes
    for index, held in enumerate(model.held_inputs):
        yield f"held_inputs[{index}].size_bytes", held.size_bytes
    for key, kind in model.kinds.items():
        for path, polynomial in _kind_polynomials(kind):
            yield f"kinds.{key}.{path}", polynomial


def _kind_polynomials(kind: CallKind) -> Iterator[tuple[str, Polynomial]]:
    for index, region in enumerate(kind.regions):
        for name, work in (
            ("forward", region.forward),
            ("backward", region.backward),
            ("recompute", region.recompute),
        ):
            yield f"regions[{index}].{name}.flops", work.flops
            yield f"regions[{index}].{name}.moved_bytes", work.moved_bytes
    for number, entry in enumerate(kind.selective):
        for index, work in enumerate(entry.recompute):
            yield f"selective[{number}].recompute[{index}].flops", work.flops
            yield f"selective[{number}].recompute[{index}].moved_bytes", work.moved_bytes
    selective = {f"selective[{number}].liveness": entry.liveness for number, entry in enumerate(kind.selective)}
    for policy, liveness in ({"none": kind.none, "full": kind.full} | selective).items():
        if liveness is None:
            continue
        for index, tensor in enumerate(liveness.saved):
            yield f"{policy}.saved[{index}].size_bytes", tensor.size_bytes
        for name, moments in (("forward", liveness.forward), ("backward", liveness.backward)):
            for index, moment in enumerate(moments):
                yield f"{policy}.{name}[{index}].live_bytes", moment.live_bytes


def _parameters(request: PlanRequest) -> None:
    parameters = request.model.iter_parameters()
    if not parameters:
        raise InconsistentRequest("model.modules: the model has no parameters, so there is nothing to shard")
    for name, parameter in parameters:
        _parameter(f"model parameter {name}", parameter)


def _parameter(title: str, parameter: Parameter) -> None:
    if parameter.optimizer_group != "default":
        raise UnsupportedField(
            f"{title}.optimizer_group", "leave it out and give workload.optimizer_groups globs over names"
        )
    if not parameter.shape:
        raise InconsistentRequest(
            f"{title} has no dimension, and fully_shard refuses scalars; make it a vector of one element"
        )
    if not parameter.num_elements:
        raise UnsupportedField(f"{title}.shape", "a parameter without elements has no place in a plan; remove it")
    if not parameter.contiguous:
        raise InconsistentRequest(
            f"{title} is not contiguous, and fully_shard refuses that; call .contiguous() when building"
        )
    if parameter.requires_grad and parameter.dtype not in COMPUTE_DTYPES:
        raise UnsupportedField(
            f"{title}.dtype", f"{parameter.dtype} cannot be trained; freeze it, or store it in a wider type"
        )


def _workload(request: PlanRequest) -> None:
    workload = request.workload
    if workload.compile:
        raise UnsupportedField("workload.compile", "plan the eager model, or profile the compiled one first")
    names = [name for name, _ in request.model.iter_parameters()]
    patterns = {f"workload.atoms[{index}]": rule.parameters for index, rule in enumerate(workload.atoms)}
    for index, quantized in enumerate(workload.quantizer_groups):
        patterns[f"workload.quantizer_groups[{index}]"] = quantized.parameters
    for where, globs in patterns.items():
        if not any(matches_any(name, globs) for name in names):
            raise InconsistentRequest(
                f"{where}: {globs!r} matches no parameter; patterns are globs over full names such as {names[0]!r}"
            )
    for index, group in enumerate(workload.optimizer_groups):
        _optimizer(f"workload.optimizer_groups[{index}]", group)
    for field in ("tensor", "pipeline", "context", "expert"):
        if getattr(workload.parallelism, field) != 1:
            raise UnsupportedField(f"workload.parallelism.{field}", "use 1")
    _torch_version(request)
    _conditional(request)
    for field in ("param_dtype", "reduce_dtype", "output_dtype"):
        dtype = getattr(workload.precision, field)
        if dtype is not None and dtype not in COMPUTE_DTYPES:
            raise UnsupportedField(f"workload.precision.{field}", f"use 'bfloat16' or 'float32', not '{dtype}'")
    for index, dtype in enumerate(request.reduce_dtypes):
        if dtype not in COMPUTE_DTYPES:
            raise UnsupportedField(f"reduce_dtypes[{index}]", f"use 'bfloat16' or 'float32', not '{dtype}'")
    planned, described = workload.precision.output_dtype, request.model.output_dtype
    if planned != described:
        raise InconsistentRequest(
            f"workload.precision.output_dtype is {planned}, but the loss was described with model.output_dtype "
            f"{described}; describe the model with output_dtype {planned}"
        )


def _conditional(request: PlanRequest) -> None:
    workload = request.workload
    paths = [module.path for module in request.model.modules if module.path]
    for index, glob in enumerate(workload.conditional):
        only = workload.model_copy(update={"conditional": (glob,)})
        if not any(only.is_conditional(path) for path in paths):
            raise InconsistentRequest(
                f"workload.conditional[{index}]: {glob!r} matches no module with parameters; patterns are globs "
                f"over paths such as {paths[0] if paths else '(root)'!r}"
            )
    knob = "reduce_scatter_unused_params"
    if workload.conditional and not supported(knob, workload.torch_version):
        raise UnsupportedField(
            "workload.conditional",
            f"fully_shard of torch {workload.torch_version} reduces no zeros for what a rank skipped, and others "
            f"would wait; use torch {KNOBS[knob].since}, or run these modules on a dummy input in every rank",
        )


def _torch_version(request: PlanRequest) -> None:
    version = request.workload.torch_version
    try:
        known = ".".join(map(str, release_of(version)[:2])) in RELEASES
    except ValueError:
        known = False
    if not known:
        releases = f"{', '.join(RELEASES[:-1])} and {RELEASES[-1]}"
        raise UnsupportedField("workload.torch_version", f"this planner knows FSDP2 of torch {releases}")
    _integer_parameters(request)


def _integer_parameters(request: PlanRequest) -> None:
    version = request.workload.torch_version
    if supported("integer_parameters", version):
        return
    for name, parameter in request.model.iter_parameters():
        if parameter.dtype in INTEGERS:
            raise UnsupportedField(
                "workload.torch_version",
                f"fully_shard of torch {version} fails for the integer parameter {name!r}; use torch "
                f"{KNOBS['integer_parameters'].since} or later",
            )


def refuse_missing_knobs(decisions: Decisions, model: ModelDescription, version: str) -> None:
    """Raise InconsistentRequest for the first knob that FSDP2 of the trainer's torch does not have."""
    for path, knob in used_knobs(decisions, model):
        if not supported(knob, version):
            raise InconsistentRequest(
                f"{path} needs FSDP2 of torch {KNOBS[knob].since} or later, but workload.torch_version is "
                f"{version!r}; leave it at its default, or train with a later torch"
            )


def _optimizer(path: str, group: OptimizerGroup) -> None:
    """What torch 2.13 has, but raises an error for when parameters are sharded."""
    if group.optimizer is OptimizerName.ADAFACTOR:
        raise UnsupportedField(
            f"{path}.optimizer", "neither torch's Adafactor nor transformers' takes sharded parameters; use 'adamw'"
        )
    if group.optimizer in (OptimizerName.SGD, OptimizerName.SGD_MOMENTUM) and group.implementation == "fused":
        raise UnsupportedField(
            f"{path}.implementation", "torch's fused SGD takes no sharded parameters; use 'foreach'"
        )
    if group.state_dtype is not None and group.state_dtype not in COMPUTE_DTYPES:
        raise UnsupportedField(f"{path}.state_dtype", "use a floating type of 16 bits or more, or 'adamw_8bit'")


def _cluster(request: PlanRequest) -> None:
    cluster = request.cluster
    if cluster.tenancy.bandwidth_share <= 0:
        raise InconsistentRequest("cluster.tenancy.bandwidth_share must be above 0")
    if not cluster.tenancy.exclusive and cluster.tenancy.bandwidth_share == 1:
        raise InconsistentRequest(
            "cluster.tenancy: exclusive is false, but bandwidth_share leaves nothing to other jobs; give a share "
            "below 1"
        )
    if cluster.reserve.fragmentation >= 1:
        raise InconsistentRequest("cluster.reserve.fragmentation takes all of the device; give a share below 1")
    if cluster.num_devices > MAX_DEVICES:
        raise InconsistentRequest(
            f"cluster.node_groups: {cluster.num_devices} devices are more than the {MAX_DEVICES} that can be "
            "planned; correct num_nodes and devices_per_node"
        )
