"""Decisions and the request that they answer."""

from collections.abc import Iterator

from planner.schema.decisions import Decisions
from planner.schema.request import PlanRequest
from planner.schema.workload import Parallelism


def size_problems(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    """Ranks, batches and element types are those that were asked for."""
    workload, ranks = request.workload, decisions.mesh.num_ranks
    if ranks != request.cluster.num_devices:
        yield (
            f"mesh {decisions.mesh.replicate} x {decisions.mesh.shard} has {ranks} ranks, but the cluster has "
            f"{request.cluster.num_devices} devices"
        )
    total = decisions.micro_batch * decisions.num_micro_batches * ranks
    if total != workload.global_batch:
        yield (
            f"micro-batch {decisions.micro_batch} x {decisions.num_micro_batches} micro-batches x {ranks} ranks is "
            f"{total} sequences, but the global batch is {workload.global_batch}"
        )
    if decisions.micro_batch not in (workload.micro_batch, *request.micro_batches):
        asked = ", ".join(map(str, dict.fromkeys((workload.micro_batch, *request.micro_batches))))
        yield f"micro-batch {decisions.micro_batch} is none that the request allows: {asked}"
    if decisions.reduce_dtype not in (workload.precision.reduce_dtype, *request.reduce_dtypes):
        asked = ", ".join(map(str, dict.fromkeys((workload.precision.reduce_dtype, *request.reduce_dtypes))))
        yield f"reduce_dtype {decisions.reduce_dtype} is none that the request allows: {asked}"
    if decisions.optimizer_implementation not in (None, *request.optimizer_implementations):
        asked = ", ".join(request.optimizer_implementations) or "the workload's own"
        step = decisions.optimizer_implementation
        yield f"optimizer_implementation {step} is none that the request allows: {asked}"
    for field in ("param_dtype", "output_dtype", "cast_forward_inputs"):
        planned, asked = getattr(decisions, field), getattr(workload.precision, field)
        if planned != asked:
            yield f"{field} {planned} differs from the workload's {asked}"
    described = request.model.output_dtype
    if decisions.output_dtype != described:
        yield f"output_dtype {decisions.output_dtype} differs from {described}, which the model was described with"


def not_modelled(request: PlanRequest, decisions: Decisions) -> Iterator[str]:
    """What the contract can say and the checker does not compute."""
    if request.workload.parallelism != Parallelism():
        yield "tensor, pipeline, context and expert parallelism are not modelled"
    if request.workload.compile:
        yield "compile is not modelled"
    if request.model.states:
        yield "further training states are not modelled"
