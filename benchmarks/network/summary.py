"""Tables of measured variants, and which bars they miss.

FSDP2's own collectives on gloo are there for the record: the step that is predicted for them stands in the table
without a bar, since a transfer of gloo's takes longer for a rank that comes late (the Note of `wire`).
"""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.network.arms import DEFAULT, PLAN, STOCK

Line = dict[str, Any]
Arm = dict[str, Any]
MEDIAN_ERROR, WORST_ERROR, PEAK_ERROR = 0.05, 0.10, 0.02
"""Most of the predicted step time, over all arms and of any, and of the peak."""
NOISE = 0.03
"""The plan counts as slower when it takes longer by more than this: the median of ratios within a round, in which
arms take their steps one after the other."""
LOSS_ERROR = 1e-5
"""Arms that accumulate before they reduce add in another order."""
RANKS_WITH_BARS = 2


def step_error(arm: Arm) -> float:
    """Predicted against measured step."""
    return float(arm["predicted_ms"] / arm["median_ms"] - 1)


def peak_error(arm: Arm) -> float:
    """Predicted against measured peak."""
    return float(arm["predicted_peak_bytes"] / arm["peak_bytes"] - 1)


def hooked(line: Line) -> list[Arm]:
    """Arms with the same hooks: all but the stock collectives."""
    return [arm for arm in line["arms"] if arm["name"] != STOCK]


def plan_of(line: Line) -> Arm:
    """The planned arm."""
    return next(arm for arm in line["arms"] if arm["name"] == PLAN)


def stock_of(line: Line) -> Arm:
    """FSDP2's own collectives."""
    return next(arm for arm in line["arms"] if arm["name"] == STOCK)


def default_of(line: Line) -> Arm:
    """FSDP2's default knobs that fit: with all blocks checkpointed where it does not fit without."""
    return next(arm for arm in line["arms"] if arm["name"].startswith(DEFAULT))


def best_by_hand(line: Line) -> Arm:
    """The arm that a person would try and that does best against the plan."""
    by_hand = [arm for arm in hooked(line) if arm["name"] != PLAN]
    return max(by_hand, key=lambda arm: ratio(plan_of(line), arm))


def ratio(arm: Arm, other: Arm) -> float:
    """Step of one over the other, in the median of the rounds that both were in."""
    return median(mine / others for mine, others in zip(arm["step_ms"], other["step_ms"], strict=False))


def tables(lines: Sequence[Line]) -> str:
    """Two markdown tables: what the plan gains, and how far predictions are off."""
    rows = [
        "| ranks | default ms | best by hand | plan | plan / default | plan / best | stock / plan |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *map(_gain, lines),
        "",
        "| ranks | arms | step: median error | worst | stock | peak: worst error | waited for the core |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *map(_errors, lines),
    ]
    return "\n".join(rows)


def _gain(line: Line) -> str:
    default, best, plan, stock = default_of(line), best_by_hand(line), plan_of(line), stock_of(line)
    cells = [f"{arm['median_ms']:.0f}" for arm in (default, best, plan)]
    cells += [f"{ratio(plan, other):.3f}" for other in (default, best)]
    return f"| {line['name']} | {' | '.join(cells)} | {ratio(stock, plan):.2f} |"


def _errors(line: Line) -> str:
    steps = [step_error(arm) for arm in hooked(line)]
    peaks = [peak_error(arm) for arm in line["arms"]]
    waited = median(share for arm in line["arms"] for share in arm["waited"])
    cells = [
        f"{len(steps)}",
        f"{median(map(abs, steps)):.1%}",
        f"{max(steps, key=abs):+.1%}",
        f"{step_error(stock_of(line)):+.1%}",
        f"{max(peaks, key=abs):+.2%}",
        f"{waited:.0%}",
    ]
    return f"| {line['name']} | {' | '.join(cells)} |"


def failures(lines: Sequence[Line]) -> list[str]:
    """Bars that are missed, in words; runs of more ranks than cores are only reported."""
    barred = [line for line in lines if line["ranks"] == RANKS_WITH_BARS]
    if not barred:
        return []
    middle = median(abs(step_error(arm)) for line in barred for arm in hooked(line))
    found = [f"steps are predicted within {middle:.1%} in the median"] if middle > MEDIAN_ERROR else []
    return found + [f"{line['name']}: {words}" for line in barred for words in _missed(line)]


def _missed(line: Line) -> Iterator[str]:
    for arm in hooked(line):
        if abs(step_error(arm)) > WORST_ERROR:
            yield f"the step of {arm['name']!r} is predicted {step_error(arm):+.1%} off"
    for arm in line["arms"]:
        if abs(peak_error(arm)) > PEAK_ERROR:
            yield f"the peak of {arm['name']!r} is predicted {peak_error(arm):+.1%} off"
    plan = plan_of(line)
    for other in (default_of(line), best_by_hand(line)):
        if ratio(plan, other) > 1 + NOISE:
            yield f"the plan takes {ratio(plan, other):.3f} times as long as {other['name']!r}"
    yield from _losses_that_differ(line)


def _losses_that_differ(line: Line) -> Iterator[str]:
    first = line["arms"][0]
    for arm in line["arms"]:
        pairs = zip(arm["losses"], first["losses"], strict=False)
        if any(abs(loss - expected) > LOSS_ERROR * abs(expected) for loss, expected in pairs):
            yield f"the losses of {arm['name']!r} differ from those of {first['name']!r}"
