"""One short profile of a small Llama on this CPU, in this process; many things are read from it."""

import gc
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.small_models import llama
from planner.schema import CallMeasurement, CallRole, ModelDescription, Profile, TracePoint, block_hash
from runtime_client.describe import TrainingExample, describe, token_inputs
from runtime_client.errors import ClientError
from runtime_client.profile import Profiled, ProfileOptions, World, default_points, profile
from runtime_client.profile.calls import measure_subject, subjects
from runtime_client.profile.fake_run import FakeModel

MICRO_BATCH = 2
SEQUENCE = 32
ALONE = World(device=torch.device("cpu"), rank=0, num_ranks=1, ranks_per_node=1)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine take long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> ModelDescription:
    return describe(llama, name="llama", micro_batch=MICRO_BATCH, sequence=SEQUENCE)


@pytest.fixture(scope="module")
def steps() -> list[tuple[int, int, str]]:
    return []


@pytest.fixture(scope="module")
def made(
    model: ModelDescription, steps: list[tuple[int, int, str]], tmp_path_factory: pytest.TempPathFactory
) -> Profiled:
    options = ProfileOptions(
        micro_batch=MICRO_BATCH,
        sequence=SEQUENCE,
        seconds=0.0,
        name="small",
        cluster="here",
        drive=tmp_path_factory.mktemp("drive"),
    )
    return profile(llama, model, options, world=ALONE, on_step=lambda *step: steps.append(step))


def calls_of(made: Profiled, kind: str) -> dict[tuple[int, int], CallMeasurement]:
    return {(call.micro_batch, call.sequence): call for call in made.profile.calls if call.kind == kind}


def test_each_kind_but_glue_is_measured_at_each_point(made: Profiled, model: ModelDescription) -> None:
    points = {(point.micro_batch, point.sequence) for point in default_points(MICRO_BATCH, SEQUENCE)}
    assert points == {(2, 32), (1, 32), (2, 16), (4, 16), (2, 8), (4, 8)}
    glue = {kind for kind in ("model",) if kind in model.kinds}
    for kind in {call.kind for call in model.calls} - glue:
        assert calls_of(made, kind).keys() == points, kind
    assert made.skipped == ()


def test_what_is_timed_follows_an_equal_run_that_is_not(model: ModelDescription) -> None:
    """Sizes alternate, and the first run after another size finds caches and allocator as that left them."""
    fake = FakeModel(llama, model)
    block = next(one for one in subjects(model) if model.kinds[one.kinds[0]].role is CallRole.BLOCK)
    events: list[tuple[str, int, bool]] = []

    def note(_: nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        events.append(("run", hidden.shape[0], gc.isenabled()))

    def now_ns() -> int:
        events.append(("clock", 0, gc.isenabled()))
        return len(events)

    points = [TracePoint(micro_batch=batch, sequence=16) for batch in (1, 2, 3)]
    handle = fake.module(block.path).register_forward_pre_hook(note, with_kwargs=True)
    try:
        found, skipped = measure_subject(fake, block, points, torch.device("cpu"), seconds=0.0, now_ns=now_ns)
    finally:
        handle.remove()
    assert not skipped
    begins = next(place for place, (_, _, collects) in enumerate(events) if not collects)
    timed = [what for *what, collects in events[begins:] if not collects]
    assert len(timed) == len(events) - begins, "the collector runs while calls are timed"
    runs = [(place, size) for place, (what, size) in enumerate(timed) if what == "run"]
    firsts = [place for (_, before), (place, size) in pairwise(runs) if size != before]
    assert len(firsts) == sum(len(samples.forward) for samples in found.values()) - 1
    assert all(timed[place : place + 3] == [timed[place], ["clock", 0], timed[place]] for place in firsts)


def test_passes_are_those_that_the_kind_has(made: Profiled) -> None:
    block, tables, head = (calls_of(made, kind)[2, 32] for kind in ("block", "rotary_emb", "lm_head"))
    assert block.forward_ns
    assert block.backward_ns
    assert block.recompute_ns
    assert (tables.backward_ns, tables.recompute_ns) == (None, None)
    assert head.backward_ns
    assert head.recompute_ns is None


def test_quantiles_surround_the_median(made: Profiled) -> None:
    for call in made.profile.calls:
        assert call.forward_ns is not None
        assert call.forward_quantiles is not None
        assert call.forward_quantiles.p10 <= call.forward_ns <= call.forward_quantiles.p99
        assert call.forward_quantiles.num_samples == call.provenance.num_samples >= 5


def test_kinds_that_are_equal_are_measured_once(made: Profiled, model: ModelDescription) -> None:
    """The first block of a Llama is a kind of its own by what is kept of its input; its work is that of all."""
    assert block_hash(model, "block") == block_hash(model, "block_1")
    assert [subject.kinds for subject in subjects(model) if "block" in subject.kinds] == [("block_1", "block")]
    ours, theirs = calls_of(made, "block"), calls_of(made, "block_1")
    assert {point: call.forward_ns for point, call in ours.items()} == {
        point: call.forward_ns for point, call in theirs.items()
    }


def test_bytes_of_calls(made: Profiled, model: ModelDescription) -> None:
    for kind in ("norm", "lm_head"):
        kept = model.kinds[kind].none.kept_bytes(2, 32)
        assert calls_of(made, kind)[2, 32].kept_bytes == kept
    block = calls_of(made, "block")[2, 32]
    described = model.kinds["block"].none.kept_bytes(2, 32)
    assert block.kept_bytes is not None
    assert described <= block.kept_bytes <= 1.3 * described  # with the position tables that all blocks share
    assert block.forward_transient_bytes is not None
    assert block.forward_transient_bytes > block.kept_bytes - 2 * 32 * 32 * 2


def test_copies_drive_rates_and_provenance(made: Profiled, model: ModelDescription) -> None:
    found = made.profile
    assert {copy.direction for copy in found.copies} == {"device_to_device", "nvme_read", "nvme_write"}
    assert all(copy.quantiles is not None and copy.size_bytes for copy in found.copies)
    assert found.launch_ns
    assert found.optimizer == "adamw/foreach"
    assert found.optimizer_parameters_per_s
    assert found.cpu_optimizer_parameters_per_s_per_core == pytest.approx(
        found.optimizer_parameters_per_s / torch.get_num_threads(), abs=1
    )
    assert found.quantiles.keys() == {
        "launch_ns",
        "optimizer_parameters_per_s",
        "cpu_optimizer_parameters_per_s_per_core",
    }
    assert found.context_bytes is found.communicator_bytes is None
    assert (found.name, found.cluster, found.model_fingerprint) == ("small", "here", model.fingerprint)
    assert found.provenance.torch_version == torch.__version__
    assert found.provenance.device
    assert found.provenance.driver
    assert found.provenance.date.startswith("20")
    assert Profile.from_json(found.to_json()) == found


def test_steps_are_told(made: Profiled, steps: list[tuple[int, int, str]]) -> None:
    done = [step[0] for step in steps]
    assert done == list(range(len(steps)))
    assert {step[1] for step in steps} == {len(steps) - 1}
    assert "calls of block_1, block" in {step[2] for step in steps}


class Fussy(nn.Module):
    """Refuses to run for real; fake tensors have no values that could disturb it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), Refusing()) for _ in range(2))
        self.head = nn.Linear(8, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


class Refusing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(x, "fake_mode"):
            raise RuntimeError("not on this device")
        return x


def test_what_cannot_run_is_skipped_with_the_reason() -> None:
    def build() -> TrainingExample:
        return TrainingExample(model=Fussy(), inputs=token_inputs)

    model = describe(build, name="fussy", micro_batch=1, sequence=8)
    options = ProfileOptions(
        micro_batch=1, sequence=8, seconds=0.0, optimizer=None, points=(TracePoint(micro_batch=1, sequence=8),)
    )
    found = profile(build, model, options, world=ALONE)
    assert [one.what for one in found.skipped] == ["block at 1 x 8"]
    assert "not on this device" in found.skipped[0].why
    assert {call.kind for call in found.profile.calls} == {"embed", "head", "loss"}
    assert found.profile.optimizer_parameters_per_s is None


@pytest.mark.parametrize(
    ("change", "words"),
    [({"optimizer": "adafactor"}, "no single rate"), ({"drive": Path("/proc/nowhere")}, "name a folder")],
)
def test_what_cannot_be_measured_is_refused(model: ModelDescription, change: dict[str, object], words: str) -> None:
    options = partial(ProfileOptions, micro_batch=1, sequence=8, seconds=0.0)(**change)
    with pytest.raises(ClientError, match=words):
        profile(llama, model, options, world=ALONE)
