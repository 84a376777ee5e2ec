"""`shardwright dryrun`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from planner.schema import Decisions, ModelDescription, PlanRequest
    from runtime_client.dryrun import DryRunJob


def dryrun(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan, or decisions alone.")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="pkg.module:build, a callable that makes a TrainingExample.")
    ],
    world: Annotated[int | None, typer.Option(metavar="N", help="Run as if on N ranks. Those of the plan.")] = None,
    request: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The request of the plan: compares memory too, and describes nothing."),
    ] = None,
    sequence: Annotated[
        int | None, typer.Option("--seq", metavar="TOKENS", help="Tokens per sequence, without --request.")
    ] = None,
) -> None:
    """Apply a plan to your model with the real FSDP2 code, on fake tensors, and compare with the prediction.

    Needs torch, no GPU and hardly any memory, whatever the size of the model and the number of ranks. TARGET is
    looked up among installed packages, then from the working directory, and must build the model of the plan.

    [dim]Examples[/dim]

    shardwright dryrun plan.json my_package.model:build --request request.json

    shardwright dryrun plan.json my_package.model:build --seq 4096 --world 1024

    Exit codes: 0 equal, 1 they differ, 2 an error in what you gave.
    """
    from api.cli.documents import load_planned, read_document
    from planner.schema import InconsistentRequest, PlanRequest

    decisions, fingerprint = load_planned(plan)
    asked = read_document(PlanRequest, request) if request is not None else None
    if (asked is None) == (sequence is None):
        raise InconsistentRequest("give either --request FILE or --seq TOKENS")
    if world is not None:
        decisions = on_world(decisions, world)
    # Last on the path: a folder called `api` in the working directory must not shadow ours.
    sys.path.append(str(Path.cwd()))

    from runtime_client.dryrun import DryRunJob

    tokens = sequence or (asked.workload.sequence if asked is not None else 0)
    groups = {"optimizer_groups": decisions.decided(asked.workload).optimizer_groups} if asked is not None else {}
    job = DryRunJob(
        record="program",
        build=target,
        decisions=decisions,
        sequence=tokens,
        model_fingerprint=fingerprint,
        **groups,
    )
    if not _compare(job, asked):
        raise typer.Exit(1)


def on_world(decisions: "Decisions", num_ranks: int) -> "Decisions":
    """The same decisions on another number of ranks: more or fewer replicas where there are any, else shards.

    Raises:
        InconsistentRequest: the shard degree does not divide the ranks.
    """
    from planner.schema import InconsistentRequest, MeshPlan

    def resized(mesh: MeshPlan) -> MeshPlan:
        if mesh.replicate == 1:
            return MeshPlan(shard=num_ranks)
        if num_ranks % mesh.shard:
            raise InconsistentRequest(
                f"--world {num_ranks} is not a multiple of the plan's shard degree {mesh.shard}"
            )
        return MeshPlan(replicate=num_ranks // mesh.shard, shard=mesh.shard)

    if num_ranks < 1:
        raise InconsistentRequest(f"--world {num_ranks} must be at least 1")
    whole, units = resized(decisions.mesh), []
    for unit in decisions.units:
        own = resized(decisions.mesh_of(unit))
        changes: dict[str, object] = {"mesh": own if own != whole else None}
        reshard = unit.reshard_after_forward
        if not isinstance(reshard, bool) and reshard == decisions.mesh_of(unit).shard:
            changes["reshard_after_forward"] = True
        units.append(unit.model_copy(update=changes))
    return decisions.model_copy(update={"mesh": whole, "units": tuple(units)})


def _compare(job: "DryRunJob", request: "PlanRequest | None") -> bool:
    from api.cli.render.comparison_page import comparison_page
    from api.cli.render.console import show, stderr
    from planner.program.predicted import predicted_outline
    from planner.simulate.peaks import predicted_peaks
    from runtime_client.dryrun import MemoryRecord, run_isolated
    from runtime_client.dryrun.compare import MemoryComparison, compare, compare_memory

    jobs = [job] if request is None else [job, job.model_copy(update={"record": "memory"})]
    with stderr().status("running FSDP2 on fake tensors"):
        program, *memory = run_isolated(jobs)
        model = request.model if request is not None else _described(job)
        predicted = predicted_outline(model, job.decisions, sequence=job.sequence)
    assert isinstance(program, tuple)
    found = compare(predicted, program)
    rows: tuple[MemoryComparison, ...] = ()
    if request is not None:
        (record,) = memory
        assert isinstance(record, MemoryRecord)
        peaks = predicted_peaks(model, job.decisions, request.workload)
        rows = compare_memory(
            record,
            micro_batch_bytes=peaks.micro_batch.total_bytes,
            optimizer_bytes=peaks.optimizer.total_bytes,
            host_bytes=peaks.host_bytes,
        )
    show(comparison_page(found, rows, job.decisions))
    return found.equal and all(row.is_close for row in rows)


def _described(job: "DryRunJob") -> "ModelDescription":
    from runtime_client.describe import describe, load_target

    return describe(
        load_target(job.build),
        name=job.build,
        micro_batch=job.decisions.micro_batch,
        sequence=job.sequence,
        param_dtype=job.decisions.param_dtype,
        output_dtype=job.decisions.output_dtype,
    )
