"""Predicted programs and bytes equal those of FSDP2: a fixed sample of `benchmarks.program_matrix`."""

import pytest

from benchmarks.program_configurations import Configuration
from benchmarks.program_cover import EXCLUSIONS, KNOBS, configurations, pairwise_cover, runnable
from benchmarks.program_matrix import compared_bytes, job, predicted
from planner.program.outline import Outline, normalised
from runtime_client.dryrun import MemoryRecord, run_isolated
from runtime_client.dryrun.compare import compare

SAMPLE = {
    configuration.name: configuration
    for configuration in (
        Configuration(),
        Configuration(mesh=(8, 8), precision="bf16-fp32", reshard="mixed", tail="unit"),
        Configuration(mesh=(1, 1), num_micro_batches=2, activations="full-second"),
        Configuration(mesh=(8, 1), precision="bf16", reshard="keep", root_reshard=True),
        Configuration(mesh=(1, 1024), forward_prefetch=2, backward_prefetch=3, own_embedding=True, tail="units"),
        Configuration(forward_prefetch=3, blocks_per_unit=2, reduce_buffers=3, num_micro_batches=2),
        Configuration(model="llama-lora", mesh=(1, 2), activations="full", own_embedding=True, reshard="keep"),
        Configuration(model="llama-half-frozen", mesh=(2, 4), backward_prefetch=1, num_micro_batches=2),
        Configuration(model="gpt2", precision="bf16-fp32-out", root_reshard=True, reduce_buffers=2),
        Configuration(model="qwen3-moe", precision="bf16-fp32", activations="full", backward_prefetch=2),
        Configuration(model="vit", mesh=(1, 64), precision="bf16-fp32", tail="unit", blocks_per_unit=2),
        Configuration(model="t5", precision="fp32-bf16", reshard="mixed", forward_prefetch=1),
        Configuration(model="whisper", mesh=(2, 4), precision="bf16", activations="full-second"),
    )
}


KNOBS_SAMPLE = {
    configuration.name: configuration
    for configuration in (
        Configuration(reshard="partial", root_reshard="partial", num_micro_batches=2),
        Configuration(mesh=(2, 4), reshard="partial-mixed", precision="bf16-fp32", kept_after_backward="second"),
        Configuration(kept_after_backward="all", num_micro_batches=3, reshard="mixed"),
        Configuration(mesh=(2, 4), precision="bf16-fp32", num_micro_batches=3, gradient_sync="last_micro_batch"),
        Configuration(mesh=(2, 4), num_micro_batches=3, gradient_sync="all_reduce_on_last_micro_batch"),
        Configuration(model="llama-unused", unused_params=True, num_micro_batches=2),
        Configuration(separate_group=True, optimizer_event=True),
        Configuration(mesh=(2, 4), offload="second", precision="bf16-fp32", num_micro_batches=2),
        Configuration(shard_dims=True, offload="second", tail="unit"),
        Configuration(precision="fp32-fp16", mesh=(8, 8)),
        Configuration(precision="bf16-fp16", mesh=(8, 1)),
        Configuration(activations="selective-second", precision="bf16-fp32"),
        Configuration(mesh=(8, 1), block_mesh="second", precision="bf16-fp32", forward_prefetch=1),
        Configuration(
            mesh=(2, 4),
            block_mesh="inside",
            inside="first",
            reshard="partial",
            offload="second",
            num_micro_batches=3,
            gradient_sync="all_reduce_on_last_micro_batch",
        ),
        Configuration(inside="all", reshard="mixed", activations="full-second"),
        Configuration(model="t5", inside="first", activations="full"),
        Configuration(precision="bf16-fp32-out", reshard="keep", blocks_per_unit=2),
        Configuration(
            model="llama-half-frozen",
            reshard="mixed",
            activations="selective",
            forward_prefetch=3,
            shard_dims=True,
            num_micro_batches=2,
            gradient_sync="last_micro_batch",
        ),
        Configuration(
            model="qwen3-moe",
            precision="bf16-fp32",
            activations="full",
            inside="all",
            blocks_per_unit=2,
            offload="second",
            reduce_buffers=2,
        ),
        Configuration(model="albert", reshard="mixed", num_micro_batches=2),
        Configuration(ragged="all", alias=True),
        Configuration(ragged="second", alias=True, precision="bf16-fp32", reshard="mixed", offload="second"),
        Configuration(
            ragged="all",
            alias=True,
            mesh=(2, 4),
            precision="bf16-fp32",
            reshard="partial-mixed",
            root_reshard=True,
            forward_prefetch=2,
            backward_prefetch=2,
            kept_after_backward="second",
            num_micro_batches=2,
        ),
        Configuration(model="t5", ragged="all", alias=True, inside="first", activations="full"),
        Configuration(
            model="llama-lora",
            mesh=(1, 64),
            precision="fp32-bf16",
            ragged="second",
            num_micro_batches=2,
            gradient_sync="last_micro_batch",
        ),
        Configuration(model="t5", mesh=(1, 256), precision="bf16-fp32", reshard="keep", reduce_buffers=3),
        Configuration(model="whisper", precision="bf16", inside="all", activations="full"),
        Configuration(model="qwen3-moe", precision="bf16-fp32-out", inside="all", activations="full"),
        Configuration(
            model="llama-half-frozen", mesh=(1, 64), precision="bf16", inside="all", activations="full-second"
        ),
        Configuration(
            model="llama-unused",
            mesh=(1, 2),
            precision="bf16-fp16",
            reshard="mixed",
            activations="full",
            forward_prefetch=2,
            inside="all",
            offload="second",
            reduce_buffers=3,
            num_micro_batches=2,
        ),
    )
}
ALL = SAMPLE | KNOBS_SAMPLE


@pytest.fixture(scope="module")
def recorded() -> dict[str, Outline]:
    return dict(zip(ALL, run_isolated([job(one) for one in ALL.values()]), strict=True))


@pytest.fixture(scope="module")
def memory() -> dict[str, MemoryRecord]:
    return dict(zip(ALL, run_isolated([job(one, "memory") for one in ALL.values()]), strict=True))


@pytest.mark.parametrize("name", ALL)
def test_predicted_equals_recorded(recorded, name):
    found = compare(predicted(ALL[name]), recorded[name])
    assert found.equal, "\n".join(map(str, found.differences[:10]))


@pytest.mark.parametrize("name", ALL)
def test_predicted_bytes_are_those_recorded(memory, name):
    rows = compared_bytes(ALL[name], memory[name])
    assert all(row.is_close for row in rows), [f"{row.phase}: {row.error:+.3%}" for row in rows]


WRONG = (
    {"mesh": (1, 16)},
    {"precision": "bf16"},
    {"reshard": "keep"},
    {"reshard": "mixed"},
    {"root_reshard": True},
    {"activations": "full"},
    {"forward_prefetch": 1},
    {"forward_prefetch": 2},
    {"backward_prefetch": 2},
    {"own_embedding": True},
    {"tail": "unit"},
    {"blocks_per_unit": 2},
    {"reduce_buffers": 2},
    {"num_micro_batches": 2},
    {"reshard": "partial"},
    {"root_reshard": "partial"},
    {"precision": "fp32-fp16"},
    {"activations": "selective"},
    {"activations": "offload"},
    {"inside": "first"},
    {"offload": "second"},
)


@pytest.mark.parametrize("knobs", WRONG, ids=lambda knobs: str(*knobs))
def test_a_program_of_other_knobs_is_told_apart(recorded, knobs):
    assert not compare(predicted(Configuration(**knobs)), recorded["llama 1x8"]).equal


def test_one_block_ahead_in_backward_is_what_fsdp2_does_anyway(recorded):
    """The two differ only where the list of the first block is empty and so falls back to the default."""
    assert compare(predicted(Configuration(backward_prefetch=1)), recorded["llama 1x8"]).equal


def test_outlines_come_in_normal_form(recorded):
    for configuration in ALL.values():
        outline = predicted(configuration)
        assert normalised(outline) == outline


def test_the_cover_has_every_pair_of_values():
    knobs = {name: KNOBS[name] for name in ("mesh", "precision", "reshard", "tail", "num_micro_batches")}
    cover = pairwise_cover(knobs)
    for first in knobs:
        for second in knobs:
            met = {(getattr(one, first), getattr(one, second)) for one in cover}
            assert first == second or len(met) == len(knobs[first]) * len(knobs[second])
    assert len(cover) < 2 * len(knobs["mesh"]) * len(knobs["precision"])


def test_configurations_that_torch_refuses_are_replaced_with_a_reason():
    wished = [Configuration(model="qwen3-moe"), Configuration(mesh=(1, 2), reshard="partial")]
    assert [runnable(one) for one in wished] == [
        Configuration(model="qwen3-moe", precision="bf16-fp32"),
        Configuration(mesh=(1, 2), reshard="mixed"),
    ]
    assert all(exclusion.reason for exclusion in EXCLUSIONS)
    every = configurations()
    assert len(every) == len({one.name for one in every}) >= 200
    assert not any(exclusion.holds(one) for one in every for exclusion in EXCLUSIONS)
