"""Plans in words: what holds everywhere, and what looser limits are worth."""

from api.folding import mesh_words
from api.quantities import count, duration, percent, size
from planner.schema import Certificate, Decisions, GradientSync, PlanBody, ShadowValue


def global_words(decisions: Decisions) -> str:
    """Mesh, batches and settings that hold everywhere."""
    runtime = decisions.runtime
    words = [
        mesh_words(decisions.mesh),
        f"{count(decisions.num_micro_batches, 'micro-batch')} of {count(decisions.micro_batch, 'sequence')}",
        count(len(decisions.units), "unit"),
    ]
    if decisions.param_dtype is not None:
        words.append(f"{decisions.param_dtype} parameters")
    if decisions.reduce_dtype is not None:
        words.append(f"{decisions.reduce_dtype} reduce")
    if decisions.optimizer_implementation is not None:
        words.append(f"{decisions.optimizer_implementation} optimizer")
    if runtime.reduce_scatter_max_input_buffers != 1:
        words.append(f"{runtime.reduce_scatter_max_input_buffers} reduce buffers")
    if runtime.separate_reduce_scatter_group:
        words.append("own communicator for reduces")
    if runtime.gradient_sync is GradientSync.LAST_MICRO_BATCH:
        words.append("gradients reduced on the last micro-batch only")
    if runtime.gradient_sync is GradientSync.ALL_REDUCE_ON_LAST:
        words.append("all-reduced on the last micro-batch only")
    if runtime.reduce_scatter_unused_params:
        words.append("unused parameters reduced as zeros")
    if runtime.post_optimizer_event:
        words.append("gathers wait for the optimizer alone")
    if decisions.shard_dims:
        words.append(f"{count(len(decisions.shard_dims), 'parameter')} sharded on another dimension than 0")
    return ", ".join(words)


def shadow_words(body: PlanBody) -> tuple[str, ...]:
    """What looser limits are worth, under the mesh and grouping of the plan."""
    if body.certificate is None or not body.reasons.shadow:
        return ()
    if all(one.saves_at_most == 0 for one in body.reasons.shadow):
        spared = "memory" if body.reasons.shadow[0].limit == "memory_bytes" else "time per step"
        return (f"more {spared} would save nothing with this mesh and grouping",)
    return tuple(_worth(one, body.certificate) for one in body.reasons.shadow)


def _worth(one: ShadowValue, certificate: Certificate) -> str:
    more = f"{size(one.more)} more memory" if one.limit == "memory_bytes" else f"{duration(one.more)} more per step"
    saved = "of the step" if one.limit == "memory_bytes" else "of the peak memory"
    least, most = (percent(saves / certificate.value) for saves in (one.saves_at_least, one.saves_at_most))
    if least == most:
        amount = least
    elif one.saves_at_least == 0:
        amount = f"at most {most}"
    else:
        amount = f"at least {least}, at most {most}"
    return f"{more} would save {amount} {saved} with this mesh and grouping"
