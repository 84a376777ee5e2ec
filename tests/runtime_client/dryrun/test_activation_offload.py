"""Activation offload as recorded: order and sizes against docs/model.md, all of it against what is predicted."""

import itertools

import pytest

from benchmarks.program_configurations import Configuration
from benchmarks.program_matrix import described, job, request
from planner.program.events import Phase, Stream
from planner.program.outline import Outline, OutlineKind, OutlineOperation, normalised
from planner.program.predicted import predicted_outline
from planner.schema import ActivationPlan, CallRole, Decisions
from planner.simulate.peaks import predicted_peaks
from planner.simulate.predict import predict
from runtime_client.dryrun import MemoryRecord, run_isolated
from runtime_client.dryrun.compare import compare, compare_memory

ALL, SECOND = ("offload",), ("none", "offload")
CASES = {
    "all": (ALL, Configuration()),
    "second": (SECOND, Configuration(num_micro_batches=2, precision="bf16-fp32")),
    "checkpointed neighbours": (("full", "offload"), Configuration(reshard="mixed", tail="unit")),
    "one rank": (ALL, Configuration(mesh=(8, 1))),
    "frozen": (ALL, Configuration(model="llama-half-frozen", num_micro_batches=2)),
    "shared by decoder blocks": (ALL, Configuration(model="t5")),
    "experts": (SECOND, Configuration(model="qwen3-moe", precision="bf16-fp32")),
    "images": (ALL, Configuration(model="vit", mesh=(2, 4))),
    "one block often": (ALL, Configuration(model="albert")),
}


def decisions(policies: tuple[str, ...], configuration: Configuration) -> Decisions:
    model = described(configuration)
    paths = dict.fromkeys(call.path for call in model.calls if model.kinds[call.kind].role is CallRole.BLOCK)
    activations = tuple(
        ActivationPlan(module=path, policy=policies[index % len(policies)]) for index, path in enumerate(paths)
    )
    return configuration.decisions(model).model_copy(update={"activations": activations})


@pytest.fixture(scope="module")
def records() -> dict[str, tuple[Outline, MemoryRecord, MemoryRecord]]:
    """Program and bytes, and bytes without any policy."""
    jobs = []
    for policies, configuration in CASES.values():
        changes = {"decisions": decisions(policies, configuration)}
        plain = {"decisions": decisions(("none",), configuration)}
        jobs += [job(configuration, record).model_copy(update=changes) for record in ("program", "memory")]
        jobs.append(job(configuration, "memory").model_copy(update=plain))
    found = iter(run_isolated(jobs))
    return dict(zip(CASES, zip(found, found, found, strict=True), strict=True))


def of(program: Outline, kind: OutlineKind) -> list[OutlineOperation]:
    return [operation for operation in program if operation.kind is kind]


@pytest.mark.parametrize("name", CASES)
def test_predicted_equals_recorded(records, name):
    policies, configuration = CASES[name]
    outline = predicted_outline(
        described(configuration), decisions(policies, configuration), sequence=configuration.parts.sequence
    )
    found = compare(outline, records[name][0])
    assert found.equal, "\n".join(map(str, found.differences[:10]))


@pytest.mark.parametrize("name", CASES)
def test_predicted_bytes_are_those_recorded(records, name):
    policies, configuration = CASES[name]
    asked = request(configuration)
    peaks = predicted_peaks(asked.model, decisions(policies, configuration), asked.workload)
    rows = compare_memory(
        records[name][1],
        micro_batch_bytes=peaks.micro_batch.total_bytes,
        optimizer_bytes=peaks.optimizer.total_bytes,
        host_bytes=peaks.host_bytes,
    )
    assert rows[-1].phase == "host memory"
    assert all(row.is_close for row in rows), [f"{row.phase}: {row.error:+.3%}" for row in rows]


@pytest.mark.parametrize("name", CASES)
def test_host_memory_holds_what_went_out(records, name):
    policies, configuration = CASES[name]
    program, memory, plain = records[name]
    sent = sum(o.size_bytes for o in of(program, OutlineKind.ACTIVATION_OUT) if o.micro_batch == 0)
    assert memory.micro_batch.host_bytes - plain.micro_batch.host_bytes == sent > 0
    predicted = predict(request(configuration), decisions(policies, configuration)).host_bytes
    assert predicted - predict(request(configuration), decisions(("none",), configuration)).host_bytes == sent
    assert memory.micro_batch.total_bytes <= plain.micro_batch.total_bytes


def test_order_of_copies(records):
    """A copy counts for the unit whose pass runs: a fetch ahead for that of the call whose backward begins."""
    program = normalised(records["all"][0])
    shown = [
        (o.kind, o.unit)
        for o in program
        if o.kind in (OutlineKind.KERNELS, OutlineKind.ACTIVATION_OUT, OutlineKind.ACTIVATION_IN) and o.unit
    ]
    blocks = CASES["all"][1].parts.blocks
    out, back, kernels = OutlineKind.ACTIVATION_OUT, OutlineKind.ACTIVATION_IN, OutlineKind.KERNELS
    forward = [(kind, block) for block in blocks for kind in (kernels, out)]
    backward = [(kind, block) for block in blocks[::-1] for kind in (back, kernels)]
    assert shown == [*forward, *backward[:-2], backward[-1]], "the first block's came during the second's backward"


def test_edges_of_copies(records):
    program = normalised(records["all"][0])
    out, back = of(program, OutlineKind.ACTIVATION_OUT), of(program, OutlineKind.ACTIVATION_IN)
    assert {o.stream for o in (*out, *back)} == {Stream.OFFLOAD}
    assert {o.phase for o in out} == {Phase.FORWARD}
    assert {o.phase for o in back} == {Phase.BACKWARD}
    assert sum(o.size_bytes for o in out) == sum(o.size_bytes for o in back)
    for copy in out:
        (waited,) = (program[wait] for wait in copy.waits)
        assert (waited.kind, waited.unit) == (OutlineKind.KERNELS, copy.unit), "after the forward of the call"
    for copy, after in itertools.pairwise(out):
        place = program.index(after)
        waiting = next(o for o in program[place:] if program.index(copy) in o.waits)
        assert waiting.stream is Stream.COMPUTE, "once the next call is through, compute waits for the copies"
    for copy in back:
        (waited,) = (program[wait] for wait in copy.waits)
        assert (waited.stream, waited.kind) == (Stream.COMPUTE, OutlineKind.COPY_OUT), "after the pre-backward"
