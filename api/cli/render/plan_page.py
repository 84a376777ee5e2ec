"""What `shardwright plan` prints: the answer first, then how it comes about."""

import shlex
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.cli.render.arrange import indented, spaced
from api.cli.render.decisions_part import decisions_part
from api.cli.render.infeasible_part import infeasible_part
from api.cli.render.predictions_part import memory_part, sources_part, step_part
from api.cli.render.quantities import change, count, duration, gib, percent, quantity, size
from planner.schema import Certificate, Plan, PlanBody, PlanRequest, Predictions, Workload


def plan_page(plan: Plan, request: PlanRequest, *, saved_as: Path | None, words: str) -> RenderableType:
    """The whole page; `words` are the shell words that make the same request again."""
    body = plan.body
    parts: list[RenderableType | None] = [subject_line(body.name, request)]
    if body.predictions is None or body.decisions is None or body.certificate is None:
        if body.infeasibility is not None:
            parts.append(infeasible_part(body.infeasibility))
        parts.append(_next_infeasible(words))
        return spaced(parts)
    parts += [
        headline(body.predictions, body.certificate),
        decisions_part(body.decisions),
        memory_part(body.predictions),
        step_part(body.predictions),
        _reasons_part(body),
        _alternatives_part(body),
        sources_part(body.predictions),
        _search_line(plan),
        _next(saved_as, words),
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


def workload_words(workload: Workload) -> str:
    """The workload in a line."""
    groups = workload.optimizer_groups
    optimizers = " + ".join(dict.fromkeys(f"{group.optimizer} ({group.implementation})" for group in groups))
    return f"{workload.global_batch} x {workload.sequence} tokens per step, {optimizers}"


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
    if not reasons.binds and not reasons.notes:
        return None
    lines = [Text.assemble(("limited by  ", "quiet"), reasons.binds)] if reasons.binds else []
    lines += [Text.assemble(("- ", "quiet"), note) for note in reasons.notes]
    return Group(Text("Why", style="title"), *(indented(line) for line in lines))


_WHY_NOT_FASTER = "faster ones are within the accepted gap (--gap), part of which makes the plan easier to read"


def _alternatives_part(body: PlanBody) -> RenderableType | None:
    if not body.reasons.alternatives or body.predictions is None:
        return None
    chosen, budget = body.predictions, body.predictions.budget.budget_bytes
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="quiet")
    table.add_column("instead")
    for heading in ("step", "", "peak GiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for other in body.reasons.alternatives:
        slower = other.step_time_ns is not None and other.step_time_ns > chosen.step_time_ns
        over = other.reserved_bytes is not None and other.reserved_bytes > budget
        verdict = "fits" if other.fits else "does not fit"
        if over and other.reserved_bytes is not None:
            verdict = f"{gib(other.reserved_bytes - budget)} too much"
        table.add_row(
            other.change,
            "-" if other.step_time_ns is None else duration(other.step_time_ns),
            Text(
                "" if other.step_time_ns is None else change(chosen.step_time_ns, other.step_time_ns),
                style="warning" if slower else "good" if other.fits else "quiet",
            ),
            "-" if other.reserved_bytes is None else gib(other.reserved_bytes),
            Text(verdict, style="quiet" if other.fits else "error"),
        )
    parts: list[RenderableType] = [Text("Alternatives", style="title"), indented(table)]
    if any(
        other.fits and (other.step_time_ns or chosen.step_time_ns) < chosen.step_time_ns
        for other in body.reasons.alternatives
    ):
        parts.append(indented(Text(_WHY_NOT_FASTER, style="quiet")))
    return Group(*parts)


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


def _next(saved_as: Path | None, words: str) -> RenderableType:
    if saved_as is None:
        return _command("Keep it", f"shardwright plan {words} -o plan.json")
    return Group(
        Text.assemble(("Saved as ", "quiet"), str(saved_as)),
        _command("Check it anywhere", f"shardwright check {shlex.quote(str(saved_as))} {words}"),
    )


def _next_infeasible(words: str) -> RenderableType:
    return _command("See what a configuration needs", f"shardwright simulate {words} --checkpoint full")


def _command(what: str, command: str) -> Text:
    # Never broken into lines, so that it can be copied.
    return Text.assemble((f"{what}: ", "quiet"), (command, "command"), no_wrap=True, overflow="ignore")
