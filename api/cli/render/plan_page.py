"""What `shardwright plan` prints: the answer first, then how it comes about."""

import shlex
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from api.cli.render.alternatives_part import alternatives_part, why_not_part
from api.cli.render.arrange import indented, spaced
from api.cli.render.decisions_part import decisions_part
from api.cli.render.infeasible_part import NOT_MEMORY, infeasible_part
from api.cli.render.predictions_part import memory_part, sources_part, step_part
from api.cli.render.weights_part import weights_part
from api.plan_words import shadow_words
from api.quantities import count, duration, gib, percent, quantity, size
from planner.schema import (
    Certificate,
    Objective,
    OptimizerGroup,
    OptimizerName,
    Plan,
    PlanBody,
    PlanRequest,
    Predictions,
    Workload,
)


def plan_page(
    plan: Plan,
    request: PlanRequest,
    *,
    saved_as: Path | None,
    words: str,
    remark: str = "",
    is_of_words: bool = True,
) -> RenderableType:
    """The whole page.

    Args:
        plan: what is shown.
        request: what it answers.
        saved_as: where it was written.
        words: shell words of `plan` that make it again.
        remark: what a sweep says about it.
        is_of_words: the words describe its request to other commands too.
    """
    body = plan.body
    parts: list[RenderableType | None] = [
        Group(subject_line(body.name, request), goal_line(request)),
        indented(Text(remark)) if remark else None,
    ]
    if body.predictions is None or body.decisions is None or body.certificate is None:
        if body.infeasibility is not None:
            parts.append(infeasible_part(body.infeasibility))
            if body.infeasibility.binding not in NOT_MEMORY:
                parts.append(
                    command_line(
                        "See what a configuration needs", f"shardwright simulate {words} --checkpoint full"
                    )
                )
        return spaced(parts)
    parts += [
        headline(body.predictions, body.certificate),
        decisions_part(body.decisions),
        memory_part(body.predictions),
        step_part(body.predictions),
        _reasons_part(body),
        weights_part(body.reasons.weights),
        alternatives_part(body),
        why_not_part(body),
        sources_part(body.predictions),
        _search_line(plan),
        _next(saved_as, words, is_of_words),
    ]
    return spaced(parts)


def subject_line(name: str, request: PlanRequest) -> RenderableType:
    """What was planned, on what."""
    cluster = request.cluster
    where = f"{cluster.name}: {count(cluster.num_devices, 'rank')} on {count(cluster.num_nodes, 'node')}"
    return Group(
        Text.assemble((name, "headline"), ("  ", "none"), (f"{quantity(request.model.num_parameters)}", "none")),
        Text(f"{where}; {workload_words(request.workload)}", style="quiet"),
    )


def goal_line(request: PlanRequest) -> Text:
    """What was minimised, within which limits that the request states."""
    limits = request.limits
    stated = [
        "" if limits.memory_bytes is None else f"{size(limits.memory_bytes)} of memory",
        "" if limits.step_time_ns is None else f"{duration(limits.step_time_ns)} per step",
    ]
    within = " and ".join(limit for limit in stated if limit)
    what = "step time" if request.objective is Objective.STEP_TIME else "peak memory"
    return Text(f"least {what}{f' within {within}' if within else ''}", style="quiet")


def workload_words(workload: Workload) -> str:
    """The workload in a line."""
    groups = workload.optimizer_groups
    optimizers = " + ".join(dict.fromkeys(map(_optimizer_words, groups)))
    return f"{workload.global_batch} x {workload.sequence} tokens per step, {optimizers}"


def _optimizer_words(group: OptimizerGroup) -> str:
    """With its implementation where it has several."""
    name = str(group.optimizer)
    one_way = group.optimizer in (OptimizerName.MUON, OptimizerName.ADAMW_8BIT)
    return name if one_way else f"{name} ({group.implementation})"


def headline(predictions: Predictions, certificate: Certificate | None) -> RenderableType:
    """Step time, throughput, MFU; peak against budget; how good it is."""
    speed = Text.assemble((duration(predictions.step_time_ns), "figure"), " per step")
    if predictions.tokens_per_s:
        speed.append(f"   {quantity(predictions.tokens_per_s)} tokens/s")
    if predictions.model_flops_utilization:
        speed.append(f"   {percent(predictions.model_flops_utilization)} MFU")
    lines = [speed, peak_line(predictions)]
    if certificate is not None:
        lines.append(proof_line(certificate))
    return Group(*(indented(line) for line in lines))


def peak_line(predictions: Predictions) -> Text:
    """Peak against budget."""
    peak, budget = predictions.peak.reserved_bytes, predictions.budget.budget_bytes
    fits = peak <= budget
    rest = abs(budget - peak)
    return Text.assemble(
        (gib(peak), "figure"),
        f" of {gib(budget)} GiB at the peak   ",
        (f"{gib(rest)} GiB free" if fits else f"{gib(rest)} GiB too much", "good" if fits else "error"),
    )


def proof_line(certificate: Certificate) -> Text:
    """How far the plan can be from the best one."""
    bound = (
        size(certificate.lower_bound)
        if certificate.objective == "peak_memory_bytes"
        else duration(certificate.lower_bound)
    )
    match certificate.status:
        case "optimal":
            text = Text("proven optimal", style="good")
        case _ if not certificate.lower_bound:
            text = Text.assemble(("provisional: ", "warning"), "the search ended before it proved any bound")
        case "bounded":
            text = Text.assemble(("within ", "none"), (percent(certificate.gap), "figure"), " of the best possible")
            text.append(f" (bound {bound})", style="quiet")
        case "provisional":
            text = Text.assemble(
                ("provisional: ", "warning"), "at most ", percent(certificate.gap), " from the best"
            )
            text.append(f" (bound {bound}); the search ended early", style="quiet")
    if certificate.checker == "passed":
        text.append("   checked independently", style="quiet")
    else:
        text.append("   not checked independently", style="warning")
    return text


def _reasons_part(body: PlanBody) -> RenderableType | None:
    reasons = body.reasons
    worth = shadow_words(body)
    if not reasons.binds and not reasons.notes and not worth:
        return None
    lines = [Text.assemble(("limited by  ", "quiet"), reasons.binds)] if reasons.binds else []
    lines += [Text.assemble(("- ", "quiet"), note) for note in (*reasons.notes, *worth)]
    return Group(Text("Why", style="title"), *(indented(line) for line in lines))


def _search_line(plan: Plan) -> RenderableType:
    certificate, total_s = plan.body.certificate, plan.envelope.timings.total_s
    words = [f"plan {plan.envelope.plan_id.removeprefix('sha256:')[:12]}"]
    if certificate is not None and certificate.num_candidates:
        covered = count(certificate.num_candidates, "global choice")
        words.append(f"{covered}, {certificate.num_pruned} ruled out by their bound")
    if total_s:
        words.append(f"{total_s:.1f} s")
    if certificate is not None and certificate.wall_clock_struck:
        words.append("stopped by the clock, so another run may differ")
    return Text(", ".join(words), style="quiet")


def _next(saved_as: Path | None, words: str, is_of_words: bool) -> RenderableType:
    if saved_as is None:
        return command_line("Keep it", f"shardwright plan {words} -o plan.json")
    saved = Text.assemble(("Saved as ", "quiet"), str(saved_as))
    if not is_of_words:
        return saved
    return Group(
        saved, command_line("Check it anywhere", f"shardwright check {shlex.quote(str(saved_as))} {words}")
    )


def command_line(what: str, command: str) -> Text:
    """A command to go on with."""
    # Never broken into lines, so that it can be copied.
    return Text.assemble((f"{what}: ", "quiet"), (command, "command"), no_wrap=True, overflow="ignore")
