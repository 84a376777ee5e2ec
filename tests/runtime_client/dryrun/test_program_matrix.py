"""Predicted programs equal those that FSDP2 issues: a fixed sample of `benchmarks.program_matrix`."""

import pytest

from benchmarks.program_matrix import KNOBS, Configuration, pairwise_cover
from planner.program.outline import Outline, normalised
from runtime_client.dryrun import run_isolated
from runtime_client.dryrun.compare import compare

SAMPLE = {
    configuration.name: configuration
    for configuration in (
        Configuration(),
        Configuration(mesh=(8, 8), precision="bf16-fp32", reshard="mixed", tail="unit"),
        Configuration(mesh=(1, 1), num_micro_batches=2, checkpoint="second"),
        Configuration(mesh=(8, 1), precision="bf16", reshard="keep", root_reshard=True),
        Configuration(mesh=(1, 1024), forward_prefetch=2, backward_prefetch=3, own_embedding=True, tail="units"),
        Configuration(forward_prefetch=3, blocks_per_unit=2, reduce_buffers=3, num_micro_batches=2),
        Configuration(model="llama-lora", mesh=(1, 2), checkpoint="all", own_embedding=True, reshard="keep"),
        Configuration(model="llama-half-frozen", mesh=(2, 4), backward_prefetch=1, num_micro_batches=2),
        Configuration(model="gpt2", precision="bf16-fp32-out", root_reshard=True, reduce_buffers=2),
        Configuration(model="qwen3-moe", precision="bf16-fp32", checkpoint="all", backward_prefetch=2),
        Configuration(model="vit", mesh=(1, 64), precision="bf16-fp32", tail="unit", blocks_per_unit=2),
        Configuration(model="t5", precision="fp32-bf16", reshard="mixed", forward_prefetch=1),
        Configuration(model="whisper", mesh=(2, 4), precision="bf16", checkpoint="second"),
    )
}


@pytest.fixture(scope="module")
def recorded() -> dict[str, Outline]:
    return dict(zip(SAMPLE, run_isolated([one.job() for one in SAMPLE.values()]), strict=True))


@pytest.mark.parametrize("name", SAMPLE)
def test_predicted_equals_recorded(recorded, name):
    found = compare(SAMPLE[name].predicted(), recorded[name])
    assert found.equal, "\n".join(map(str, found.differences[:10]))


WRONG = (
    {"mesh": (1, 16)},
    {"precision": "bf16"},
    {"reshard": "keep"},
    {"reshard": "mixed"},
    {"root_reshard": True},
    {"checkpoint": "all"},
    {"forward_prefetch": 1},
    {"forward_prefetch": 2},
    {"backward_prefetch": 2},
    {"own_embedding": True},
    {"tail": "unit"},
    {"blocks_per_unit": 2},
    {"reduce_buffers": 2},
    {"num_micro_batches": 2},
)


@pytest.mark.parametrize("knobs", WRONG, ids=lambda knobs: str(*knobs))
def test_a_program_of_other_knobs_is_told_apart(recorded, knobs):
    assert not compare(Configuration(**knobs).predicted(), recorded["llama 1x8"]).equal


def test_one_block_ahead_in_backward_is_what_fsdp2_does_anyway(recorded):
    """The two differ only where the list of the first block is empty and so falls back to the default."""
    assert compare(Configuration(backward_prefetch=1).predicted(), recorded["llama 1x8"]).equal


def test_outlines_come_in_normal_form(recorded):
    for configuration in SAMPLE.values():
        predicted = configuration.predicted()
        assert normalised(predicted) == predicted


def test_the_cover_has_every_pair_of_values():
    knobs = {name: KNOBS[name] for name in ("mesh", "precision", "reshard", "tail", "num_micro_batches")}
    cover = pairwise_cover(knobs)
    for first in knobs:
        for second in knobs:
            met = {(getattr(one, first), getattr(one, second)) for one in cover}
            assert first == second or len(met) == len(knobs[first]) * len(knobs[second])
    assert len(cover) < 2 * len(knobs["mesh"]) * len(knobs["precision"])
