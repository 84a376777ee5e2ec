"""Decisions as YAML, for who writes the calls of `fully_shard` by hand."""

import json
from collections.abc import Iterator
from typing import Any

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
    return head + "\n".join(_lines(decisions.model_dump(mode="json", exclude_defaults=True), "")) + "\n"


def _lines(value: dict[str, Any], indent: str) -> Iterator[str]:
    """A mapping in block style; JSON is a part of YAML, so scalars and short lists are written as JSON."""
    for name, inner in value.items():
        match inner:
            case dict() if inner:
                yield f"{indent}{name}:"
                yield from _lines(inner, f"{indent}  ")
            case [dict(), *_]:
                yield f"{indent}{name}:"
                for item in inner:
                    first, *others = _lines(item, f"{indent}    ") if item else ("    {}",)
                    yield f"{indent}  - {first.lstrip()}"
                    yield from others
            case _:
                yield f"{indent}{name}: {json.dumps(inner)}"
