"""`profile`: everything that can be measured of a model on the ranks of a job, as a `Profile`."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from planner.schema import CallRole, ModelDescription, Profile, TracePoint
from runtime_client.describe.example import TrainingExample
from runtime_client.profile.assemble import calls_of, collective_of, copy_of, scalars_of
from runtime_client.profile.calls import CallSamples, Skipped, Subject, measure_subject, subjects
from runtime_client.profile.collectives import COLLECTIVES, Collective, CurveSamples, measure_curve
from runtime_client.profile.copies import CopySamples, measure_copies
from runtime_client.profile.fake_run import FakeModel
from runtime_client.profile.nvme import measure_drive
from runtime_client.profile.options import ProfileOptions, default_points
from runtime_client.profile.overlap import Overlap, measure_overlap
from runtime_client.profile.provenance import provenance_of
from runtime_client.profile.rates import launch_times, num_threads, step_times
from runtime_client.profile.reserves import communicator_bytes, context_bytes
from runtime_client.profile.world import Level, World, levels

OnStep = Callable[[int, int, str], None]
"""Gets the number of steps done, of all, and what is measured now."""

_CALLS_SHARE = 0.55
_COLLECTIVES_SHARE = 0.25
_WEIGHT_OF_BLOCKS = 3


@dataclass(slots=True, kw_only=True)
class Found:
    """What was measured so far on this rank."""

    calls: dict[str, dict[TracePoint, CallSamples]] = field(default_factory=dict)
    """By block hash."""
    curves: list[CurveSamples] = field(default_factory=list)
    copies: list[CopySamples] = field(default_factory=list)
    launches_ns: list[int] = field(default_factory=list)
    steps: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    """Elements and nanoseconds of optimizer steps, by where they run: `device` or `host`."""
    cores: int = 1
    context_bytes: int | None = None
    communicator_bytes: int | None = None
    overlap: Overlap | None = None
    skipped: list[Skipped] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """A profile, and what could not be measured."""

    profile: Profile
    skipped: tuple[Skipped, ...]


def profile(
    build: Callable[[], TrainingExample],
    model: ModelDescription,
    options: ProfileOptions,
    *,
    world: World,
    on_step: OnStep = lambda done, total, what: None,
    now_ns: Callable[[], int] = time.perf_counter_ns,
) -> Profiled:
    """Measure a model on the ranks of a job. Every rank calls it alike, and gets the same profile.

    Args:
        build: makes the model and its inputs, as for `describe`; called on fake tensors.
        model: its description, whose kinds the profile names.
        options: what to measure.
        world: the ranks (`World.join`).
        on_step: told how far it is.
        now_ns: clock of calls on a CPU.

    Raises:
        ClientError: the drive or the optimizer cannot be measured.
        NotDescribable: the model cannot run on fake tensors.
    """
    found = Found(context_bytes=context_bytes(world.device))
    steps = list(_steps(build, model, options, world, found, now_ns))
    for done, (what, step) in enumerate(steps):
        on_step(done, len(steps), what)
        world.wait()
        step()
    on_step(len(steps), len(steps), "")
    return _assembled(model, options, world, found)


def _steps(
    build: Callable[[], TrainingExample],
    model: ModelDescription,
    options: ProfileOptions,
    world: World,
    found: Found,
    now_ns: Callable[[], int],
) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "cost of issuing a kernel", lambda: found.launches_ns.extend(launch_times(world.device))
    yield "copies", lambda: found.copies.extend(measure_copies(world.device))
    if options.drive is not None:
        folder = options.drive
        yield "drive", lambda: found.copies.extend(measure_drive(folder) if not world.rank else ())
    if options.optimizer is not None:
        yield "optimizer", lambda: _measure_optimizer(options, world, found)
    yield from _call_steps(build, model, options, world, found, now_ns)
    if world.num_ranks > 1:
        yield from _collective_steps(model, options, world, found)


def _measure_optimizer(options: ProfileOptions, world: World, found: Found) -> None:
    assert options.optimizer is not None, "it is measured only where one is named"
    found.cores = num_threads()
    found.steps["device"] = step_times(options.optimizer, options.implementation, world.device)
    if world.device.type != "cpu":
        found.steps["host"] = step_times(options.optimizer, options.implementation, world.host)
    else:
        found.steps["host"] = found.steps["device"]


def _call_steps(
    build: Callable[[], TrainingExample],
    model: ModelDescription,
    options: ProfileOptions,
    world: World,
    found: Found,
    now_ns: Callable[[], int],
) -> Iterator[tuple[str, Callable[[], None]]]:
    fake = FakeModel(build, model)
    points = list(options.points or default_points(options.micro_batch, options.sequence))
    all_subjects = subjects(model)
    weights = {subject.block: _weight(model, subject) for subject in all_subjects}
    seconds = _CALLS_SHARE * options.seconds / max(1, sum(weights.values()))

    def measure(subject: Subject) -> None:
        samples, skipped = measure_subject(
            fake, subject, points, world.device, seconds=seconds * weights[subject.block], now_ns=now_ns
        )
        found.calls[subject.block] = samples
        found.skipped += skipped

    for subject in all_subjects:
        yield f"calls of {', '.join(subject.kinds)}", partial(measure, subject)


def _weight(model: ModelDescription, subject: Subject) -> int:
    is_block = any(model.kinds[kind].role is CallRole.BLOCK for kind in subject.kinds)
    return _WEIGHT_OF_BLOCKS if is_block else 1


def _collective_steps(
    model: ModelDescription, options: ProfileOptions, world: World, found: Found
) -> Iterator[tuple[str, Callable[[], None]]]:
    groups = levels(world, every_mesh=options.every_mesh)
    largest = options.largest_bytes or largest_unit_bytes(model)
    seconds = _COLLECTIVES_SHARE * options.seconds / (len(groups) * len(COLLECTIVES))

    def curve(collective: Collective, level: Level) -> None:
        found.curves.append(measure_curve(world, collective, level, largest_bytes=largest, seconds=seconds))

    for level in groups:
        for collective in COLLECTIVES:
            what = f"{collective} of {level.num_ranks} ranks on {level.num_nodes} nodes"
            yield what, partial(curve, collective, level)

    def overlap() -> None:
        found.overlap = measure_overlap(world, groups[0])

    def communicator() -> None:
        found.communicator_bytes = communicator_bytes(world)

    yield "overlap", overlap
    if world.device.type != "cpu":
        yield "memory of a communicator", communicator


def largest_unit_bytes(model: ModelDescription) -> int:
    """float32 bytes of the largest module that calls are made of: the most that one collective moves."""
    sizes = [
        sum(4 * parameter.num_elements for parameter in model.parameter_sets[module.parameters])
        for module in model.modules
    ]
    return max(sizes)


def _assembled(model: ModelDescription, options: ProfileOptions, world: World, found: Found) -> Profiled:
    of_ranks: list[Found] = world.gathered(found)
    provenance = provenance_of(world.device)
    if world.num_ranks > 1:
        provenance = world.gathered(provenance)[0]
    profile = Profile(
        name=options.name,
        calls=calls_of(model, [rank.calls for rank in of_ranks], provenance),
        collectives=tuple(collective_of(curve, provenance) for curve in found.curves),
        copies=tuple(
            copy_of([rank.copies[place] for rank in of_ranks if place < len(rank.copies)], provenance)
            for place in range(max(len(rank.copies) for rank in of_ranks))
        ),
        cluster=options.cluster,
        model_fingerprint=model.fingerprint,
        provenance=provenance,
        **scalars_of(options, of_ranks),
    )
    skipped = {(one.what, one.why): one for rank in of_ranks for one in rank.skipped}
    return Profiled(profile=profile, skipped=tuple(skipped.values()))
