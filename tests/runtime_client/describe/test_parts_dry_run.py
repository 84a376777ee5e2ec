"""Units inside blocks: what the real FSDP2 issues, and when, against the parts of the description."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from benchmarks import small_models
from planner.program.events import Phase
from planner.program.outline import Outline, OutlineKind
from planner.program.parts import expanded
from planner.schema import Decisions, DType, MeshPlan, ModelDescription, UnitPlan
from runtime_client.describe import TrainingExample, describe, pipeline
from runtime_client.dryrun import DryRunJob, run_isolated

NUM_BLOCKS = 4
CASES: dict[str, tuple[Callable[[], TrainingExample], tuple[str, ...]]] = {
    "llama": (small_models.llama, ("mlp",)),
    "qwen3_moe": (small_models.qwen3_moe, ("self_attn", "mlp.experts")),
}
GATHER = (OutlineKind.COPY_IN, OutlineKind.ALL_GATHER)


def decisions(inside: Sequence[str]) -> Decisions:
    names = [f"model.layers.{index}" for index in range(NUM_BLOCKS)]
    modules = [*(f"{name}.{path}" for name in names for path in inside), *names, ""]
    return Decisions(
        mesh=MeshPlan(replicate=1, shard=8),
        units=tuple(UnitPlan(modules=(module,)) for module in modules),
        param_dtype=DType.BFLOAT16,
        reduce_dtype=DType.FLOAT32,
        micro_batch=2,
        num_micro_batches=1,
    )


@pytest.fixture(scope="module")
def recorded() -> dict[str, Outline]:
    jobs = [
        DryRunJob(
            record="program",
            build=f"{small_models.__file__}:{name}",
            decisions=decisions(inside),
            sequence=32,
        )
        for name, (_, inside) in CASES.items()
    ]
    return dict(zip(CASES, run_isolated(jobs), strict=True))


@pytest.fixture(scope="module")
def described() -> Iterator[dict[str, ModelDescription]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "with_selective", lambda subject, point_set, traces, plain: list(traces))
        yield {name: describe(build, name=name, micro_batch=2, sequence=32) for name, (build, _) in CASES.items()}


def of_block(outline: Outline, block: str, phase: Phase) -> list[tuple[OutlineKind, str]]:
    return [
        (operation.kind, operation.unit.removeprefix(f"{block}."))
        for operation in outline
        if operation.phase is phase and (operation.unit == block or operation.unit.startswith(f"{block}."))
    ]


def test_order_of_a_block_with_its_mlp_in_a_unit(recorded: dict[str, Outline]) -> None:
    """The inner unit gathers amid the calls of the outer one, which goes on after it."""
    block = "model.layers.1"
    gather = [*GATHER, OutlineKind.COPY_OUT]
    assert of_block(recorded["llama"], block, Phase.FORWARD) == [
        *((kind, block) for kind in gather),
        (OutlineKind.KERNELS, block),
        *((kind, "mlp") for kind in gather),
        (OutlineKind.KERNELS, "mlp"),
        (OutlineKind.KERNELS, block),
    ]
    assert of_block(recorded["llama"], block, Phase.BACKWARD) == [
        *((kind, block) for kind in gather),
        *((kind, "mlp") for kind in gather),
        (OutlineKind.KERNELS, "mlp"),
        (OutlineKind.CHUNK_CAT, "mlp"),
        (OutlineKind.REDUCE_SCATTER, "mlp"),
        (OutlineKind.KERNELS, block),
        (OutlineKind.CHUNK_CAT, block),
        (OutlineKind.REDUCE_SCATTER, block),
    ]


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD])
@pytest.mark.parametrize("name", CASES)
def test_kernels_of_every_unit_run_are_those_of_its_parts(
    name: str, phase: Phase, recorded: dict[str, Outline], described: dict[str, ModelDescription]
) -> None:
    """The root is left out: its kernels include the loss and casts, which are counted elsewhere."""
    units = [unit.modules for unit in decisions(CASES[name][1]).units[:-1]]
    model = expanded(described[name], units, []).model
    calls = model.calls if phase is Phase.FORWARD else model.calls[::-1]
    predicted = [
        (unit_of(call.path, units), sum(getattr(r, phase).num_kernels for r in model.kinds[call.kind].regions))
        for call in calls
    ]
    seen = [
        (operation.unit, operation.num_kernels)
        for operation in recorded[name]
        if operation.phase is phase and operation.kind is OutlineKind.KERNELS
    ]
    runs = NUM_BLOCKS * (2 * len(CASES[name][1]) + (phase is Phase.FORWARD))
    assert len(merged(predicted)) == runs
    assert merged(predicted) == merged(seen)


def unit_of(path: str, units: Sequence[tuple[str, ...]]) -> str:
    while path and (path,) not in units:
        path = path.rpartition(".")[0]
    return path


def merged(runs: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Neighbours of one unit as one run; what launches nothing and the root are left out."""
    result: list[tuple[str, int]] = []
    for unit, num_kernels in runs:
        if not num_kernels or not unit:
            continue
        if result and result[-1][0] == unit:
            num_kernels += result.pop()[1]
        result.append((unit, num_kernels))
    return result
