"""State in files: what is read is what was written, or an error that says what is wrong."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from planner.schema import ShardwrightError
from runtime_client.offload import errors
from runtime_client.offload.manifests import read_manifests
from runtime_client.offload.nvme_store import NvmeStore, resumable_step
from runtime_client.offload.unit_step import UnitStep
from runtime_client.ragged.tensor import RaggedTensor, Spread
from tests.runtime_client.offload.training import build, found, groups, on_disk, same, train


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "rank-00000"


def stop(folder: Path, steps: int = 3) -> dict[str, torch.Tensor]:
    """Leave the files of a run of some steps; the parameters that it had."""
    model = build()
    optimizer = on_disk(model, folder)
    train(model, optimizer, range(steps))
    optimizer.close()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def test_equals_state_in_memory(folder: Path) -> None:
    plain, other = build(), build()
    optimizer, stored = torch.optim.AdamW(groups(plain), lr=1e-3), on_disk(other, folder)
    train(plain, optimizer, range(5))
    train(other, stored, range(5))
    assert same(found(plain, optimizer), found(other, stored))
    stored.close()
    assert [manifest.step for manifest in read_manifests(folder)] == [4, 5]


@pytest.mark.parametrize("step", [2, 3])
def test_a_run_goes_on_from_either_of_its_last_two_steps(folder: Path, step: int) -> None:
    plain = build()
    optimizer = torch.optim.AdamW(groups(plain), lr=1e-3)
    stop(folder)
    train(plain, optimizer, range(step))
    other = build()
    other.load_state_dict(plain.state_dict())
    stored = on_disk(other, folder, resume_step=step)
    assert same(found(plain, optimizer), found(other, stored))
    for model, one in ((plain, optimizer), (other, stored)):
        train(model, one, range(step, 6))
    assert same(found(plain, optimizer), found(other, stored))
    stored.close()


def test_units_without_a_gradient_keep_their_state(folder: Path) -> None:
    plain, other = build(), build()
    optimizer, stored = torch.optim.AdamW(groups(plain), lr=1e-3), on_disk(other, folder)
    for model, one in ((plain, optimizer), (other, stored)):
        train(model, one, range(2))
        model[2].requires_grad_(False)
        train(model, one, range(2, 5))
        model[2].requires_grad_(True)
        train(model, one, range(5, 7))
    assert same(found(plain, optimizer), found(other, stored))
    stored.close()


def test_steps_are_counted_as_the_trainer_counts_them(folder: Path) -> None:
    """Units that begin later, or leave out a step, do not make two states of one step."""
    model = build()
    optimizer = on_disk(model, folder)
    for trained in ((0,), (0, 1), (2,), ()):
        for place in trained:
            for parameter in model[place].parameters():
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    optimizer.close()
    assert [manifest.step for manifest in read_manifests(folder)] == [2, 3]
    optimizer = on_disk(model, folder, resume_step=3)
    train(model, optimizer, range(1))
    optimizer.close()
    assert resumable_step(folder.parent) == 4


def test_loaded_state_is_a_complete_step(folder: Path) -> None:
    plain, other = build(), build()
    optimizer = torch.optim.AdamW(groups(plain), lr=1e-3)
    train(plain, optimizer, range(7))
    other.load_state_dict(plain.state_dict())
    stored = on_disk(other, folder)
    stored.load_state_dict(deepcopy(optimizer.state_dict()))
    assert [manifest.step for manifest in read_manifests(folder)] == [7]
    for model, one in ((plain, optimizer), (other, stored)):
        train(model, one, range(7, 9))
    assert same(found(plain, optimizer), found(other, stored))
    stored.close()


def cut(folder: Path) -> None:
    os.truncate(folder / "state.bin", 5000)


def flip(folder: Path) -> None:
    with (folder / "state.bin").open("r+b") as file:
        for place in range(0, (folder / "state.bin").stat().st_size, 1000):
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 1]))


def lose(folder: Path) -> None:
    (folder / "state.bin").unlink()


def lose_manifests(folder: Path) -> None:
    for path in folder.glob("manifest-*"):
        path.unlink()


def tear_manifests(folder: Path) -> None:
    for path in folder.glob("manifest-*"):
        path.write_text(path.read_text()[:-20])


@pytest.mark.parametrize(
    ("harm", "error", "match"),
    [
        (cut, errors.StateCorrupt, "has checksum|truncated"),
        (flip, errors.StateCorrupt, "has checksum"),
        (lose, errors.StateMissing, "no complete optimizer state of step 3"),
        (lose_manifests, errors.StateMissing, r"it has \[\]"),
        (tear_manifests, errors.StateMissing, r"it has \[\]"),
    ],
)
def test_harmed_files_are_refused_at_the_start(
    folder: Path, harm: Callable[[Path], None], error: type[ShardwrightError], match: str
) -> None:
    stop(folder)
    harm(folder)
    with pytest.raises(error, match=match):
        on_disk(build(), folder, resume_step=3)


@pytest.mark.parametrize(
    ("harm", "error"), [(cut, errors.StateCorrupt), (flip, errors.StateCorrupt), (lose, errors.StateMissing)]
)
def test_harm_in_the_middle_of_a_run_ends_it(
    folder: Path, harm: Callable[[Path], None], error: type[ShardwrightError]
) -> None:
    model = build()
    optimizer = on_disk(model, folder)
    train(model, optimizer, range(2))
    optimizer.settle()
    harm(folder)
    with pytest.raises(error):
        train(model, optimizer, range(2, 4))
    with pytest.raises(errors.OptimizerStepFailed):
        train(model, optimizer, range(1))


def test_state_of_something_else_is_refused(folder: Path) -> None:
    stop(folder)
    other = build()
    other[2] = torch.nn.Linear(17, 6)
    with pytest.raises(errors.StateDiffers, match="another model, plan, or optimizer"):
        on_disk(other, folder, resume_step=3)


def test_state_that_nobody_asked_for_is_not_overwritten(folder: Path) -> None:
    stop(folder)
    with pytest.raises(errors.StateExists, match=r"steps \[2, 3\].*resume_step"):
        on_disk(build(), folder)
    assert resumable_step(folder.parent) == 3
    assert resumable_step(folder) is None


def test_a_folder_has_one_user(folder: Path) -> None:
    optimizer = on_disk(build(), folder)
    with pytest.raises(errors.StateDirectoryInUse, match="another process"):
        on_disk(build(), folder)
    optimizer.close()
    optimizer.close()
    on_disk(build(), folder).close()


def test_a_place_that_is_no_directory_is_refused(folder: Path) -> None:
    folder.write_text("a file")
    with pytest.raises(errors.StateNotWritten, match=r"cannot be used as a state directory \(File exists\)"):
        on_disk(build(), folder)
    with pytest.raises(errors.StateNotWritten, match=r"state directory \(Not a directory\)"):
        on_disk(build(), folder / "rank-00000")


@pytest.fixture
def second_of_three() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", rank=1, world_size=3, store=FakeStore())
    yield init_device_mesh("cpu", (3,))
    dist.destroy_process_group()


def test_another_part_of_the_same_shape_is_refused(second_of_three: DeviceMesh, folder: Path) -> None:
    """Ragged layouts may give a rank as many elements of another place."""

    def store(first: int, **options: Any) -> NvmeStore:
        spread = Spread(second_of_three, (first, 8, 8 - first))
        parameter = torch.nn.Parameter(RaggedTensor(torch.ones(8), spread, (16,)))
        settings = torch.optim.Adam([parameter]).param_groups
        return NvmeStore([UnitStep.of("", [(parameter, 0)], torch.optim.Adam, settings)], folder, **options)

    made = store(4)
    made.replace([[torch.ones(8), torch.ones(8)]], num_steps=0)
    made.close()
    store(4, resume_step=0).close()
    with pytest.raises(errors.StateDiffers):
        store(2, resume_step=0)


def test_a_buffer_smaller_than_the_largest_unit_is_refused(folder: Path) -> None:
    """Two moments of 33 x 65 weights, 65 biases, 65 x 17 weights and 17 biases, each in lines of 64 bytes."""
    with pytest.raises(
        errors.StateBufferTooSmall, match=r"buffer_bytes is 27135, but .* unit 'first' has 27136 bytes"
    ):
        on_disk(build(), folder, buffer_bytes=27135)
    on_disk(build(), folder, buffer_bytes=27136, num_buffers=1).close()


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """What a full disk is to a file that is as large already."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_a_disk_without_room_is_refused_before_training(folder: Path) -> None:
    with largest_file(20_000), pytest.raises(errors.StateNotWritten, match=r"no room for 65536 bytes .* are free"):
        on_disk(build(), folder)
    assert not (folder / "state.bin").exists()
    on_disk(build(), folder).close()


def test_a_disk_that_fills_up_leaves_the_last_complete_step(folder: Path) -> None:
    model = build()
    optimizer = on_disk(model, folder)
    train(model, optimizer, range(3))
    optimizer.settle()
    before = found(model, optimizer)
    with largest_file(30_000), pytest.raises(errors.StateNotWritten, match=r"no room for .* last complete step"):
        train(model, optimizer, range(3, 5))
    with pytest.raises(errors.OptimizerStepFailed, match="StateNotWritten"):
        train(model, optimizer, range(1))
    optimizer.close()
    stored = on_disk(build(), folder, resume_step=3)
    after = found(build(), stored)
    assert all(torch.equal(after[name], value) for name, value in before.items() if " " in name)
    stored.close()
