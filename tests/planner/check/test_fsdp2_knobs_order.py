"""The hooks issue what FSDP2 issues under every knob, in its order.

Recorded as in `test_fsdp2_order.py`, on 8 ranks, with the blocks of `nested.py`; several operations in a row on one
stream count as one. A list has the micro-batches of a step.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from planner.check.machine import Link, Machine, Stream
from planner.check.step import Replay
from planner.schema import DType, GradientSync, Precision, RuntimeKnobs
from tests.planner.check.flat_costs import FlatCosts
from tests.planner.check.nested import (
    NESTED_DURATIONS,
    PARTS,
    Block,
    Knobs,
    nested_decisions,
    nested_model,
    nested_request,
)
from tests.planner.factories import MIXED_PRECISION

LETTERS = {
    Stream.COMPUTE: "c",
    Stream.COPY_IN: "i",
    Stream.GATHER: "g",
    Stream.REDUCE: "r",
    Stream.ALL_REDUCE: "a",
}
INNER = ("attn", "mlp")
NESTED = ("attn", "mlp", "")
SPARE = Block(has_spare=True)
TWICE = {"num_blocks": 1, "repeats": 2}
SYNC_ON_LAST = RuntimeKnobs(gradient_sync=GradientSync.LAST_MICRO_BATCH)
ALL_REDUCE_ON_LAST = RuntimeKnobs(gradient_sync=GradientSync.ALL_REDUCE_ON_LAST)
UNUSED = RuntimeKnobs(reduce_scatter_unused_params=True)
HALF = Precision(param_dtype=DType.BFLOAT16, reduce_dtype=DType.FLOAT16)
BFLOAT16 = Precision(param_dtype=DType.BFLOAT16, reduce_dtype=None)
FORWARD = {
    "layers.0.attn": ("layers.0.mlp", "layers.1.attn"),
    "layers.0.mlp": ("layers.1.attn", "layers.1.mlp"),
    "layers.1.attn": ("layers.1.mlp",),
}
BACKWARD = {"layers.0.attn": ("layers.0.norm",), "layers.0.mlp": ("layers.0.norm",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What was recorded, and for what."""

    recorded: list[str]
    knobs: Knobs = field(default_factory=Knobs)
    model: Mapping[str, Any] = field(default_factory=dict)
    precision: Precision = MIXED_PRECISION
    num_devices: int = 8


CASES: Mapping[str, Case] = {
    "nested units": Case(
        knobs=Knobs(units=NESTED),
        recorded=[
            "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGIgGcCigIgGcCigCrRcCigIgGcCrRcCrRIgGcCigIgGcCigcCrRcCigcCrRcCrRcCrRcc"
        ],
    ),
    "nested unit at the start": Case(
        knobs=Knobs(units=("norm", "")),
        recorded=["IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGcCigIgGCrRcCrRcCigIgGcCigcCrRcCrRcCrRcc"],
    ),
    "runs twice": Case(model=TWICE, recorded=["IgGcCIgGigcCIgGigcCigIgGcCigIgGcCigCrRcCrRcc"]),
    "runs twice, kept": Case(knobs=Knobs(reshard=False), model=TWICE, recorded=["IgGcCIgGigcCigIgGcCigCrRcCrRcc"]),
    "two blocks run twice": Case(
        model={"repeats": 2},
        recorded=["IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGcCigIgGCrRcCigcIgGcCigCrRcCrRcc"],
    ),
    "runs twice, hybrid": Case(
        knobs=Knobs(replicate=2), model=TWICE, recorded=["IgGcCIgGigcCIgGigcCigIgGcCigIgGcCigCrRaAcCrRaAcc"]
    ),
    "nested, runs twice": Case(
        knobs=Knobs(units=NESTED),
        model=TWICE,
        recorded=[
            "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGIgGcCigIgGcCigcCigIgGcCigIgGIgGcCigCrRcCigcCrRcCrRcCrRcc"
        ],
    ),
    "partial": Case(knobs=Knobs(reshard=2), recorded=["IgGcCIgGigcCIgGigcCigigIgGcCigigIgGCrRcCigcCrRcCrRcc"]),
    "partial, hybrid": Case(
        knobs=Knobs(reshard=2, replicate=2), recorded=["IgGcCIgGigcCIgGigcCigigIgGcCigigIgGCrRaAcCigcCrRaAcCrRaAcc"]
    ),
    "partial, runs twice": Case(
        knobs=Knobs(reshard=2), model=TWICE, recorded=["IgGcCIgGigcCigIgGigcCigigIgGcCigIgGcCigCrRcCrRcc"]
    ),
    "kept after backward": Case(
        knobs=Knobs(reshard_after_backward=False),
        recorded=[
            "IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigcCrRcCrRcc",
            "IgGcCigIgGCrRcCigcCrRcCrRcc",
            "IgGcCigIgGCrRcCigcCrRcCrRcc",
        ],
    ),
    "kept after both": Case(
        knobs=Knobs(reshard=False, reshard_after_backward=False),
        recorded=["IgGcCIgGigcCIgGigcCigCrRcCrRcCrRcc", "CrRcCrRcCrRcc", "CrRcCrRcCrRcc"],
    ),
    "sync on last": Case(
        knobs=Knobs(runtime=SYNC_ON_LAST),
        recorded=[
            "IgGcCIgGigcCIgGigcCigIgGcCigIgGCcCigC",
            "IgGcCIgGigcCIgGigcCigIgGcCigIgGCcCigC",
            "IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigCcCrRCcCrRcc",
        ],
    ),
    "sync on last, same type": Case(
        knobs=Knobs(runtime=SYNC_ON_LAST),
        precision=BFLOAT16,
        recorded=[
            "IgGcCIgGigcCIgGigcCigIgGcCigIgGcCig",
            "IgGcCIgGigcCIgGigcCigIgGcCigIgGcCig",
            "IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigcCrRcCrRcc",
        ],
    ),
    "all-reduce on last": Case(
        knobs=Knobs(runtime=ALL_REDUCE_ON_LAST, replicate=2),
        recorded=[
            "IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigcCrRcCrRcc",
            "IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigcCrRcCrRcc",
            "IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRaAcCigcCrRaAcCrRaAcc",
        ],
    ),
    "unused": Case(
        knobs=Knobs(runtime=UNUSED),
        model={"block": SPARE},
        recorded=["IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigCcCrRcCrRcc"],
    ),
    "unused, runs twice": Case(
        knobs=Knobs(runtime=UNUSED),
        model={"block": SPARE, **TWICE},
        recorded=["IgGcCIgGigcCIgGigcCigIgGcCigCrRIgGcCigCccCrRcCrRcc"],
    ),
    "float16": Case(precision=HALF, recorded=["IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigcCrRcCrRcc"]),
    "float16, hybrid": Case(
        knobs=Knobs(replicate=2),
        precision=HALF,
        recorded=["IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRaAcCigcCrRaAcCrRaAcc"],
    ),
    "dimension 1": Case(knobs=Knobs(dim=1), recorded=["IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigcCrRcCrRcc"]),
    "host": Case(knobs=Knobs(on_host=True), recorded=["IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigcCrRcCrRcc"]),
    "host, hybrid": Case(
        knobs=Knobs(on_host=True, replicate=2), recorded=["IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRaAcCigcCrRaAcCrRaAcc"]
    ),
    "host, accumulates": Case(
        knobs=Knobs(on_host=True, reshard_after_backward=False),
        recorded=["IgGcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigcCrRcCrRcc", "IgGcCigIgGCrRcCigcCrRcCrRcc"],
    ),
    "host, partial": Case(
        knobs=Knobs(on_host=True, reshard=2), recorded=["IgGcCIgGigcCIgGigcCigigIgGcCigigIgGCrRcCigcCrRcCrRcc"]
    ),
    "one rank": Case(knobs=Knobs(on_host=True), num_devices=1, recorded=["CigCigCigCigCrRCigcCrRcCrRcc"]),
    "replicas of one rank": Case(
        knobs=Knobs(replicate=4), num_devices=4, recorded=["CigCigCigCigCrRaACigcCrRaAcCrRaAcc"]
    ),
    "checkpointed": Case(
        knobs=Knobs(units=NESTED, checkpoint=True),
        recorded=[
            "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGIgGcCigIgGcCigigcCigCrRIgGcCrRcCrRIgGcCigIgGcCigigcCigcCrRcCrRcCrRcCrRcc"
        ],
    ),
    "checkpointed, no block unit": Case(
        knobs=Knobs(units=INNER, checkpoint=True),
        recorded=["IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGigcCigCrRIgGcCrRcCigIgGigcCigcCrRcCrRcCrRcc"],
    ),
    "checkpointed, one inner": Case(
        knobs=Knobs(units=("attn", ""), checkpoint=True),
        recorded=["IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGigcCigIgGCrRcCrRcCigIgGigcCigcCrRcCrRcCrRcc"],
    ),
    "checkpointed, residual": Case(
        knobs=Knobs(units=INNER, checkpoint=True),
        model={"block": Block(end="glue")},
        recorded=["IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGigcCigCrRIgGcCrRcCigIgGigcCigcCrRcCrRcCrRcc"],
    ),
    "checkpointed, tail": Case(
        knobs=Knobs(units=INNER, checkpoint=True),
        model={"block": Block(end="tail")},
        recorded=["IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGigIgGcCigigcCigCrRIgGcCrRigIgGcCigigcCigcCrRcCrRcCrRcc"],
    ),
    "checkpointed, runs twice": Case(
        knobs=Knobs(units=NESTED, checkpoint=True),
        model=TWICE,
        recorded=[
            "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGIgGcCigIgGcCigigcCigIgGcCigIgGIgGcCigcCigCrRcCrRcCrRcCrRcc"
        ],
    ),
    "checkpointed, runs twice, explicit": Case(
        knobs=Knobs(units=PARTS, checkpoint=True, backward_prefetch=BACKWARD),
        model=TWICE,
        recorded=[
            "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGigcCigigIgGcCigIgGcCigIgGcCigCcCcCigCrRcCrRcCrRcCrRcc"
        ],
    ),
    "checkpointed, prefetch": Case(
        knobs=Knobs(units=INNER, checkpoint=True, forward_prefetch=FORWARD),
        recorded=["IgGcCIgGigcCIgGIgGigcCIgGigcCigcCigIgGcCigIgGigcCigCrRIgGcCrRcCigIgGigcCIgGigcCrRcCrRcCrRccc"],
    ),
    "checkpointed, host": Case(
        knobs=Knobs(units=INNER, checkpoint=True, on_host=True),
        recorded=["IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGigcCigCrRIgGcCrRcCigIgGigcCigcCrRcCrRcCrRcc"],
    ),
    "checkpointed, partial": Case(
        knobs=Knobs(units=INNER, checkpoint=True, reshard=2),
        recorded=[
            "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigigIgGcCigigIgGigcCigCrRigIgGcCrRcCigigIgGigcCigcCrRcCrRcCrRcc"
        ],
    ),
    "everything": Case(
        knobs=Knobs(
            units=NESTED,
            checkpoint=True,
            reshard=2,
            replicate=2,
            reshard_after_backward=False,
            runtime=ALL_REDUCE_ON_LAST,
        ),
        recorded=[
            "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigigIgGigIgGcCigigIgGcCigigcCigCrRigIgGcCrRcCrRigIgGcCigigIgGcCigigcCigcCrRcCrRcCrRcCrRcc",
            "CigIgGigIgGcCigigIgGcCigigcCigCrRigIgGcCrRcCrRigIgGcCigigIgGcCigigcCigcCrRcCrRcCrRcCrRcc",
            "CigIgGigIgGcCigigIgGcCigigcCigCrRaAigIgGcCrRaAcCrRaAigIgGcCigigIgGcCigigcCigcCrRaAcCrRaAcCrRaAcCrRaAcc",
        ],
    ),
}


class Recorder(Machine):
    """Writes down what is issued; the durations of calls are longer than those of copies."""

    def __init__(self) -> None:
        super().__init__(0)
        self.log = ""

    def run(self, stream: Stream, duration_ns: int, launches: int = 1, link: Link | None = None) -> int:
        if duration_ns < 70:
            self.log += LETTERS[stream].upper()
        return super().run(stream, duration_ns, launches, link)

    def wait(self, stream: Stream, event_ns: int) -> None:
        self.log += LETTERS[stream]
        super().wait(stream, event_ns)


@pytest.mark.parametrize("case", CASES)
def test_order_is_that_of_fsdp2(case: str) -> None:
    told = CASES[case]
    num = len(told.recorded)
    request = nested_request(
        nested_model(**told.model),
        num_devices=told.num_devices,
        num_micro_batches=num,
        precision=told.precision,
    )
    machine = Recorder()
    replay = Replay(
        request, nested_decisions(request, told.knobs), FlatCosts(durations=NESTED_DURATIONS), machine=machine
    )
    replay.allocate_persistent()
    found = []
    for index in range(num):
        machine.log = ""
        replay.walk(is_last=index == num - 1)
        found.append(re.sub(r"([A-Z])\1+", r"\1", machine.log))
    assert found == told.recorded
