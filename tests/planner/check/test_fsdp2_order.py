"""The hooks issue what FSDP2 issues, in its order.

The sequences were recorded from `fully_shard` of torch 2.13.0 on 64 ranks: a model of an embedding, four blocks, a
norm and a head, run under FakeTensorMode and a fake process group on a device whose streams and events write a log.
A capital letter is an operation, a small one a wait: c compute (copy-outs and chunk_cat only), i copy-in,
g all-gather, r reduce, a all-reduce. The waits of the root's pre-forward for the optimizer are left out.
"""

import pytest

from planner.check.machine import Link, Machine, Stream
from planner.check.step import Replay
from planner.schema import DType, PlanRequest, RuntimeKnobs, UnitPlan
from tests.planner.check.flat_costs import FlatCosts
from tests.planner.factories import (
    DURATIONS,
    EMBEDDING,
    MIXED_PRECISION,
    CallSpec,
    tiny_cluster,
    tiny_decisions,
    tiny_model,
    tiny_request,
)

PATHS = [f"layers.{index}" for index in range(4)]
EMBED = UnitPlan(modules=("embed",))
TAIL = UnitPlan(modules=("norm", "head"))
LETTERS = {
    Stream.COMPUTE: "c",
    Stream.COPY_IN: "i",
    Stream.GATHER: "g",
    Stream.REDUCE: "r",
    Stream.ALL_REDUCE: "a",
}
FROZEN = CallSpec(shapes=((16, 4),), requires_grad=False, input_requires_grad=False, output_requires_grad=False)
RECORDED: dict[str, tuple[dict, str]] = {
    "default": (
        {},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigIgGcCrRcCigIgGcCrRcCigcCrRcCrRcc",
    ),
    "hybrid mesh": (
        {"replicate": 8},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGCrRaAcCigIgGcCrRaAcCigIgGcCrRaAcCigcCrRaAcCrRaAcc",
    ),
    "kept blocks": (
        {"keep": PATHS[1::2]},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGCrRcCigcCrRIgGcCrRcCigcCrRcCrRcc",
    ),
    "root resharded": (
        {"root_reshard": True},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGcCigIgGCrRcCigIgGcCrRcCigIgGcCrRcCigcCrRcCrRcc",
    ),
    "explicit prefetch": (
        {"forward_prefetch": 2, "backward_prefetch": 2},
        "IgGcCIgGigcCIgGIgGigcCIgGigcCigcCigIgGcCigIgGIgGCrRcCigIgGcCrRcCigcCrRcCigcCrRcCrRcc",
    ),
    "uneven prefetch with a kept block": (
        {"forward_prefetch": 1, "backward_prefetch": 3, "keep": PATHS[2:3]},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGIgGCrRcCrRcCigcCrRcCigcCrRcCrRcc",
    ),
    "embedding unit": (
        {"extra_units": [EMBED]},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigIgGcCrRcCigIgGcCrRcCigIgGcCrRcCigcCrRccCrRcc",
    ),
    "norm and head unit": (
        {"extra_units": [TAIL]},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigIgGcCrRcCigIgGcCrRcCigIgGcCrRcCigcCrRcCrRcc",
    ),
    "no root parameters": (
        {"extra_units": [EMBED, TAIL], "forward_prefetch": 1},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigIgGcCrRcCigIgGcCrRcCigIgGcCrRcCigIgGcCrRcCigcCrRcc",
    ),
    "two reduce buffers": (
        {"runtime": RuntimeKnobs(reduce_scatter_max_input_buffers=2)},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigIgGCrRcCigIgGcCrRcCigcCrRcCrRccc",
    ),
    "frozen embedding": (
        {},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigIgGcCrRcCigIgGcCrRcCigcCrRccCrRcc",
    ),
    "frozen embedding unit": (
        {"extra_units": [EMBED]},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigIgGcCrRcCigIgGcCrRcCigIgGcCrRcccCrRcc",
    ),
    "hybrid with embedding unit": (
        {"replicate": 8, "extra_units": [EMBED]},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGCrRaAcCigIgGcCrRaAcCigIgGcCrRaAcCigIgGcCrRaAcCigcCrRaAccCrRaAcc",
    ),
    "hybrid with root resharded": (
        {"replicate": 8, "extra_units": [TAIL], "root_reshard": True},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGIgGcCigCrRaAcCigIgGcCrRaAcCigIgGcCrRaAcCigIgGcCrRaAcCigcCrRaAcCrRaAcc",
    ),
    "checkpointed": (
        {"checkpoint": PATHS[::2]},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGCrRcCigIgGcCrRcCigIgGcCrRcCigcCrRcCrRcc",
    ),
    "hybrid checkpointed with three buffers": (
        {"replicate": 8, "checkpoint": PATHS[1:2], "runtime": RuntimeKnobs(reduce_scatter_max_input_buffers=3)},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGCrRaAcCigIgGCrRaAcCigIgGCrRaAcCigcCrRaAcCrRaAcccc",
    ),
    "cast output": (
        {"extra_units": [TAIL], "root_reshard": True},
        "IgGcCIgGigcCIgGigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGIgGcCigCrRcCigIgGcCrRcCigIgGcCrRcCigIgGcCrRcCigcCrRcCrRcc",
    ),
    "root prefetches": (
        {"extra_units": [TAIL], "root_reshard": True, "root_prefetch": True},
        "IgGcCIgGIgGigcCigcCIgGigcCIgGigcCIgGigcCigIgGcCigIgGIgGcCigIgGCrRcCigcCrRcCigIgGcCrRcCigIgGcCrRcCigcCrRcCrRcc",
    ),
}


class Recorder(Machine):
    """Writes down what is issued; calls are told from copies by their duration."""

    def __init__(self) -> None:
        super().__init__(0)
        self.log = ""

    def run(self, stream: Stream, duration_ns: int, launches: int = 1, link: Link | None = None) -> int:
        if duration_ns == 1 or link is not None:
            self.log += LETTERS[stream].upper()
        return super().run(stream, duration_ns, launches, link)

    def wait(self, stream: Stream, event_ns: int) -> None:
        self.log += LETTERS[stream]
        super().wait(stream, event_ns)


def request_of(case: str) -> PlanRequest:
    precision = MIXED_PRECISION
    if case == "cast output":
        precision = precision.model_copy(update={"output_dtype": DType.FLOAT32})
    model = tiny_model(4, embedding=FROZEN if case.startswith("frozen") else EMBEDDING, loss=None)
    if case.startswith("frozen"):
        first = model.kinds["block"].model_copy(update={"input_requires_grad": False})
        calls = tuple(
            call.model_copy(update={"kind": "first"}) if call.path == "layers.0" else call for call in model.calls
        )
        model = model.model_copy(update={"kinds": {**model.kinds, "first": first}, "calls": calls})
    return tiny_request(model, tiny_cluster(64, devices_per_node=8), precision=precision)


@pytest.mark.parametrize("case", RECORDED)
def test_order_is_that_of_fsdp2(case: str) -> None:
    options, recorded = RECORDED[case]
    request = request_of(case)
    prefetches = options.get("root_prefetch", False)
    decisions = tiny_decisions(request, **{key: value for key, value in options.items() if key != "root_prefetch"})
    if prefetches:
        update = {"forward_prefetch": ("layers.0", "layers.1"), "backward_prefetch": ("layers.3", "layers.2")}
        root = decisions.units[-1].model_copy(update=update)
        decisions = decisions.model_copy(update={"units": (*decisions.units[:-1], root)})
    machine = Recorder()
    costs = FlatCosts(durations={**DURATIONS, "first": DURATIONS["block"]})
    Replay(request, decisions, costs, machine=machine).run()
    assert machine.log == recorded
