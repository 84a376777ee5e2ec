"""What the contract declares and this planner does not honour is refused with its path, never ignored."""

from planner.schema import (
    ElementAtom,
    InconsistentRequest,
    Objective,
    OptimizerGroup,
    OptimizerName,
    PlanRequest,
    UnsupportedField,
)


def refuse_unsupported(request: PlanRequest) -> None:
    """Raise UnsupportedField or InconsistentRequest for the first thing that cannot be honoured."""
    _model(request)
    _workload(request)
    _cluster(request)
    if request.objective is not Objective.STEP_TIME:
        raise UnsupportedField("objective", "minimise 'step_time'; least memory is reported when nothing fits")
    if request.limits.step_time_ns is not None:
        raise UnsupportedField("limits.step_time_ns", "leave it out")


def _model(request: PlanRequest) -> None:
    if request.model.states:
        raise UnsupportedField("model.states[0]", "leave further training states out")
    if any(tensor.last_call < tensor.first_call for tensor in request.model.shared):
        raise InconsistentRequest("model.shared: a tensor ends before it begins")
    for key, kind in request.model.kinds.items():
        if kind.branches:
            raise UnsupportedField(f"model.kinds.{key}.branches", "describe the model with every branch taken")
    for name, parameter in request.model.iter_parameters():
        if parameter.atom != ElementAtom():
            raise UnsupportedField(f"model parameter {name}.atom", "leave atoms out; layouts are even for now")
        if not parameter.shape:
            raise InconsistentRequest(
                f"model parameter {name} has no dimension, and fully_shard refuses scalars; "
                "make it a vector of one element"
            )
        if not parameter.contiguous:
            raise InconsistentRequest(
                f"model parameter {name} is not contiguous, and fully_shard refuses that; "
                "call .contiguous() when building"
            )


def _workload(request: PlanRequest) -> None:
    workload = request.workload
    if workload.compile:
        raise UnsupportedField("workload.compile", "plan the eager model, or profile the compiled one first")
    for index, group in enumerate(workload.optimizer_groups):
        _optimizer(f"workload.optimizer_groups[{index}]", group)
    for field in ("tensor", "pipeline", "context", "expert"):
        if getattr(workload.parallelism, field) != 1:
            raise UnsupportedField(f"workload.parallelism.{field}", "use 1")
    major, _, minor = workload.torch_version.partition(".")
    if not (major == "2" and minor.split(".")[0] in ("11", "12", "13")):
        raise UnsupportedField("workload.torch_version", "this planner knows FSDP2 of torch 2.11, 2.12 and 2.13")


def _optimizer(path: str, group: OptimizerGroup) -> None:
    """What torch 2.13 has, but raises an error for when parameters are sharded."""
    if group.optimizer is OptimizerName.ADAFACTOR:
        raise UnsupportedField(f"{path}.optimizer", "torch's Adafactor takes no sharded parameters; use 'adamw'")
    if group.optimizer in (OptimizerName.SGD, OptimizerName.SGD_MOMENTUM) and group.implementation == "fused":
        raise UnsupportedField(
            f"{path}.implementation", "torch's fused SGD takes no sharded parameters; use 'foreach'"
        )


def _cluster(request: PlanRequest) -> None:
    if request.cluster.tenancy.bandwidth_share <= 0:
        raise InconsistentRequest("cluster.tenancy.bandwidth_share must be above 0")
