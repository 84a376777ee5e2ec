"""One rank: train one step of a plan as planned and in wrong ways; what the check of the step says, as JSON."""

import json
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn import functional

from planner.schema import PlanBody
from runtime_client.apply import AppliedPlan, apply_plan
from runtime_client.client import load_plan
from tests.real.small_llama import MICRO_BATCH, NUM_MICRO_BATCHES, SEQUENCE, VOCABULARY, build_model


def backward(applied: AppliedPlan, num_micro_batches: int, begin: Callable[[int], None]) -> None:
    for index in range(num_micro_batches):
        begin(index)
        tokens = torch.randint(0, VOCABULARY, (MICRO_BATCH, SEQUENCE))
        logits = applied.model(tokens).logits
        functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()


def with_edge_behind(body: PlanBody) -> PlanBody:
    """A unit that prefetches the one before it in forward, and no list that contradicts it."""
    assert body.decisions is not None
    none = {"forward_prefetch": (), "backward_prefetch": ()}
    first, second, *others = (unit.model_copy(update=none) for unit in body.decisions.units)
    changed = second.model_copy(update={"forward_prefetch": first.modules[:1]})
    made = body.decisions.model_copy(update={"units": (first, changed, *others)})
    return body.model_copy(update={"decisions": made})


def main() -> None:
    dist.init_process_group("gloo")
    plan = load_plan(sys.argv[1])
    answers = {}
    for case in ("planned", "partial", "fewer", "silent", "evaluated", "behind"):
        model = build_model()
        applied = apply_plan(model, with_edge_behind(plan.body) if case == "behind" else plan, device_type="cpu")
        parameters = list(applied.model.parameters())
        optimizer = torch.optim.AdamW(parameters[:-1] if case == "partial" else parameters)
        begin = (lambda index: None) if case == "silent" else applied.begin_micro_batch
        with applied.checked_step() as report:
            backward(applied, NUM_MICRO_BATCHES - (case == "fewer"), begin)
            if case == "evaluated":
                with torch.no_grad():
                    applied.model(torch.zeros(MICRO_BATCH, SEQUENCE, dtype=torch.long))
            optimizer.step()
        answers[case] = {
            "line": report.line,
            "warnings": report.warnings,
            "found": list(report.num_collectives.values()),
            "planned": [count for count in report.planned_collectives.values() if count],
        }
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
