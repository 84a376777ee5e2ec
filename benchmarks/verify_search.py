"""Plans against brute force: `make_plan` with gap 0 on random small requests, and every plan of each by `predict`.

Of each request a plan is drawn, and some of its choices are fixed until few enough plans are left to predict them
all. Then, for least time and for least memory, under limits on memory and on the step time:

- the plan is the best that keeps them and the fixed choices, or the least memory is stated where none does;
- solver, simulator and checker agree about the plan, solver and simulator about every plan;
- no bound (floors, class relaxations, CP-SAT) is above the best of what it bounds.

Results are appended to `docs/measurements/search/verify.jsonl`, one line a request; those of the same commit are
not run again. Run from the repository: `python -m benchmarks.verify_search`, or `make verify-search`.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.record import done_before, provenance
from benchmarks.search_checks import (
    Outcome,
    Outcomes,
    Question,
    all_regions,
    every_plan,
    plan_differences,
    region_differences,
)
from benchmarks.search_choices import lost_choices, narrowed
from benchmarks.search_requests import EXACT, random_request, with_rules
from planner.plan import make_plan
from planner.schema import ActivationPolicy, Objective, PlanBody, PlanRequest, StateTier

OUTPUT = Path(__file__).parents[1] / "docs" / "measurements" / "search" / "verify.jsonl"
NUM_REQUESTS = 1000
MAX_PLANS = 150
"""Of a request; each is predicted, which takes milliseconds."""
NUM_CHECKED = 20
"""Plans of a request that the checker recomputes, beside the best."""
LOOSE = EXACT.model_copy(update={"gap": 0.05})
NUM_SHOWN = 5


def questions(
    request: PlanRequest, plans: Sequence[Outcome], rng: Random, *, is_device: bool
) -> Iterator[Question]:
    """Just too little memory, the least that will do, some more; least memory; and just too little time."""
    whole = Question.of(request, 2**40, is_device=is_device)
    on_host = [plan for plan in plans if plan.fits_host] or plans
    needed = sorted(map(whole.needed, on_host))
    more = rng.choice(needed)
    yield Question.of(request, needed[0] - 1, is_device=is_device, step_time_ns=rng.choice((None, 2**40)))
    for budget_bytes in dict.fromkeys((needed[0], more)):
        yield Question.of(request, budget_bytes, is_device=is_device)
    times = sorted(plan.step_ns for plan in on_host if whole.needed(plan) <= more)
    for objective, limit_ns in (
        (Objective.PEAK_MEMORY, rng.choice((None, times[0], rng.choice(times)))),
        (rng.choice(list(Objective)), times[0] - 1),
    ):
        yield Question.of(request, more, is_device=is_device, objective=objective, step_time_ns=limit_ns)


def knobs_of(request: PlanRequest, body: PlanBody) -> list[str]:
    """What a plan uses beyond FSDP2's defaults."""
    decisions = body.decisions
    if decisions is None:
        return ["infeasible"]
    units, policies = decisions.units, {entry.policy for entry in decisions.activations}
    used = {
        "replicas": any(mesh.replicate > 1 for mesh in decisions.meshes),
        "a mesh for large units": len(decisions.meshes) > 1,
        "ragged layouts": bool(decisions.layouts),
        "gathers in place": any(unit.alias_gathers for unit in units),
        "owners of matrices": bool(decisions.owners),
        "kept after forward": any(unit.reshard_after_forward is False for unit in units),
        "resharded in part": any(type(unit.reshard_after_forward) is int for unit in units),
        "kept after backward": not all(unit.reshard_after_backward for unit in units),
        "offloaded units": any(unit.parameter_tier is StateTier.HOST for unit in units),
        "optimizer state off the device": any(unit.optimizer_tier is not unit.parameter_tier for unit in units),
        "merged blocks": any(sum(m.startswith("layers.") for m in unit.modules) > 1 for unit in units),
        "cut blocks": any(module.count(".") > 1 for unit in units for module in unit.modules),
        "embedding apart": any("embed" in unit.modules for unit in units),
        "head apart": any("head" in unit.modules for unit in units),
        "forward prefetch": any(unit.forward_prefetch for unit in units),
        "backward prefetch": any(unit.backward_prefetch for unit in units),
        "reduce buffers": decisions.runtime.reduce_scatter_max_input_buffers > 1,
        "separate reduce-scatter group": decisions.runtime.separate_reduce_scatter_group,
        "larger micro-batch": decisions.micro_batch > 1,
        "another reduce dtype": decisions.reduce_dtype != request.workload.precision.reduce_dtype,
        "another optimizer implementation": decisions.optimizer_implementation is not None,
        decisions.runtime.gradient_sync.value: decisions.num_micro_batches > 1,
        **{f"{policy.value} checkpointing": policy in policies for policy in ActivationPolicy},
    }
    return [name for name, is_used in used.items() if is_used]


def result(seed: int) -> dict[str, Any]:
    """One line of the results."""
    started = time.monotonic()
    rng = Random(seed)
    request = narrowed(with_rules(random_request(seed), rng), rng, max_plans=MAX_PLANS)
    is_device = rng.random() < 0.5
    listed_for = Question.of(request, 2**40, is_device=is_device).request
    outcomes = Outcomes(listed_for)
    found = list(every_plan(listed_for, outcomes, rng, num_checked=NUM_CHECKED))
    plans = [outcome for outcome, _ in found]
    differences = [text for _, texts in found for text in texts]
    knobs: Counter[str] = Counter()
    num_solves, spent = 0, 0.0
    for number, asked in enumerate(questions(request, plans, rng, is_device=is_device)):
        listed = all_regions(asked.request)
        proved = rng.choice(listed)
        for region in listed:
            differences += region_differences(asked, region, outcomes, proves=region is proved)
        for limits in (EXACT, LOOSE) if number == 1 else (EXACT,):
            asked_so = Question(
                request=asked.request.model_copy(update={"search": limits}),
                budget_bytes=asked.budget_bytes,
                is_device=asked.is_device,
            )
            body = make_plan(asked_so.request).body
            differences += plan_differences(asked_so, body, plans)
            if body.decisions is not None:
                differences += [f"{asked}: {choice} is lost" for choice in lost_choices(request, body.decisions)]
            num_solves += 1
            spent += body.certificate.deterministic_time if body.certificate else 0.0
            knobs.update(knobs_of(request, body))
    return {
        "equal": not differences,
        "plans": len(plans),
        "solves": num_solves,
        "limits": "device" if asked.is_device else "tensors",
        "fixed": len(request.fixed),
        "deterministic_time": round(spent, 3),
        "knobs": dict(knobs),
        "first": differences[:NUM_SHOWN],
        "seconds": round(time.monotonic() - started, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS, help="how many, numbered from --first")
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    parser.add_argument("--again", action="store_true", help="also those that this commit has results of")
    parser.add_argument("--minutes", type=float, default=None, help="stop after the request that passes this time")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    started = time.monotonic()
    where = provenance()
    done = set() if arguments.again else done_before(arguments.output, "request")
    wanted = [seed for seed in range(arguments.first, arguments.first + arguments.requests) if seed not in done]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    counted: Counter[str] = Counter()
    knobs: Counter[str] = Counter()
    for seed in wanted:
        try:
            found = result(seed)
        except Exception as error:  # whatever it is, it is a finding
            found = {"equal": False, "first": [f"{type(error).__name__}: {error}"]}
        with arguments.output.open("a") as output:
            output.write(json.dumps(where | {"request": seed} | found) + "\n")
        counted["equal" if found["equal"] else "different"] += 1
        for name in ("plans", "solves"):
            counted[name] += found.get(name, 0)
        knobs.update(found.get("knobs", {}))
        for text in found["first"]:
            print(f"request {seed}: {text}", flush=True)
        if arguments.minutes is not None and time.monotonic() - started > 60 * arguments.minutes:
            break
    print(f"{counted['equal']} equal, {counted['different']} different, {len(done)} done before")
    print(f"{counted['plans']} plans predicted, {counted['solves']} searches; knobs of the best plans:")
    for name, num in knobs.most_common():
        print(f"  {name}: {num}")
    return int(counted["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
