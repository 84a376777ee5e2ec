"""Decisions as YAML, for who writes the calls of `fully_shard` by hand."""

import json

import yaml

from planner.schema.plan import Plan

_HEAD = """\
# Decisions of plan {plan_id}
# {name} on {ranks} ranks, for FSDP2 of torch {torch}.
# Units are in the order in which fully_shard is called on them, the root ("") last. What is left out is a default.
"""


def decisions_yaml(plan: Plan) -> str:
    """The decisions of a feasible plan; fields that equal their defaults are left out."""
    decisions = plan.body.decisions
    assert decisions is not None, "only plans that fit decide anything"
    head = _HEAD.format(
        plan_id=plan.envelope.plan_id,
        name=json.dumps(plan.body.name),
        ranks=plan.body.world_size,
        torch=plan.body.requires.torch,
    )
    chosen = decisions.model_dump(mode="json", exclude_defaults=True)
    return f"{head}{yaml.safe_dump(chosen, sort_keys=False, width=120)}"
