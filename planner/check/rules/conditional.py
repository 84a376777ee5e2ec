"""Modules that some ranks skip: every rank gathers their unit, and reduces zeros for what it skipped."""

from collections.abc import Iterator, Sequence

from planner.check.units import Unit
from planner.schema.decisions import Decisions, GradientSync
from planner.schema.request import PlanRequest


def conditional_problems(request: PlanRequest, decisions: Decisions, units: Sequence[Unit]) -> Iterator[str]:
    """Plans under which ranks would wait for one that skipped a module, or reduce other tensors than it does.

    A unit is gathered by the forward of its modules, and `FSDPParamGroup.post_backward` of torch 2.13 reduces what
    has a gradient, or with `reduce_scatter_unused_params` everything, zeros in `param_dtype`.
    """
    workload, runtime = request.workload, decisions.runtime
    if not workload.conditional:
        return
    for unit in units:
        if not unit.is_root and all(workload.is_conditional(path) for path in unit.plan.modules):
            yield (
                f"{unit.title}: some ranks skip all of its modules (workload.conditional), and others would wait "
                "for them; leave the modules to a unit that every rank runs"
            )
    if not runtime.reduce_scatter_unused_params:
        yield (
            "runtime.reduce_scatter_unused_params: ranks that skip a module of workload.conditional would reduce "
            "fewer tensors than the others; set it"
        )
    if runtime.gradient_sync is not GradientSync.LAST_MICRO_BATCH or decisions.num_micro_batches == 1:
        return
    for unit in units:
        skipped = [p.name for p in unit.parameters if p.requires_grad and workload.is_conditional(p.name)]
        if skipped and any(flat.requires_grad and flat.reduced is not flat.gathered for flat in unit.flats):
            yield (
                f"{unit.title}: zeros of {skipped[0]!r}, where a rank skips it, would be reduced with gradients "
                "accumulated in another type, which torch 2.13 refuses; reduce on every micro-batch"
            )
