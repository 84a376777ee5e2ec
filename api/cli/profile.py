"""`shardwright profile`: measure a model on its ranks, and put measurements together."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from api.cli.groups import HELP_OPTIONS
from api.cli.shared_options import HfConfig, MicroBatch, Output, Sequence, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from planner.schema import ModelDescription, Profile, TracePoint
    from runtime_client.describe import TrainingExample
    from runtime_client.profile import Profiled

_MEASURE = "measure"


class MeasuresByDefault(TyperGroup):
    """`shardwright profile TARGET` measures; the other commands have names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as the base has it
        """Name the command that measures where none is named."""
        if args and args[0] not in self.commands and args[0] not in HELP_OPTIONS["help_option_names"]:
            args = [_MEASURE, *args]
        return super().parse_args(ctx, args)


profile = typer.Typer(
    cls=MeasuresByDefault,
    help="Measure a model on the ranks of a job; merge and import measurements.\n\n"
    "shardwright profile TARGET is short for shardwright profile measure TARGET.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings=HELP_OPTIONS,
)


@profile.command(_MEASURE)
def measure(
    target: Target = None,
    hf: HfConfig = None,
    sequence: Sequence = 4096,
    micro_batch: MicroBatch = 1,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BATCHxTOKENS",
            help="Sizes to measure calls at, e.g. 2x4096. Repeatable; without it six sizes up to --seq.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The model's description, which is made anew without it."),
    ] = None,
    param_dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="Computes in: bf16, fp16, fp32, none. With --model, as described.")
    ] = "bf16",
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda", help="Where to measure; cuda where there is one.")
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", help="About how long to measure.")] = 60.0,
    optimizer: Annotated[
        str,
        typer.Option(metavar="NAME", help="Optimizer whose rate is measured, e.g. adamw/fused; or none."),
    ] = "adamw/foreach",
    nvme: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Measure the drive that holds this folder.")
    ] = None,
    every_mesh: Annotated[
        bool,
        typer.Option("--every-mesh", help="Collectives of every mesh of the job, not only of world and nodes."),
    ] = False,
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the cluster, for a service to find the profile by.")
    ] = "",
    name: Annotated[str | None, typer.Option(help="Name of the profile.")] = None,
    output: Output = None,
) -> None:
    """Measure blocks, collectives, copies and the optimizer on this device, or on all ranks under torchrun.

    Needs torch. TARGET is looked up among installed packages, then from the working directory. Nothing else should
    run on the machine meanwhile. Rank 0 writes the profile.

    [dim]Examples[/dim]

    shardwright profile my_package.model:build --seq 4096 -o profile.json

    torchrun --nproc-per-node 8 --no-python shardwright profile --hf config.json --seq 8192 -o profile.json
    """
    from api.cli.documents import require_place

    if output is not None:
        require_place(output)
    build, description = _subject(target, hf, model, micro_batch, sequence, param_dtype)

    from runtime_client.profile import ProfileOptions

    optimizer_name, _, implementation = optimizer.partition("/")
    options = ProfileOptions(
        micro_batch=micro_batch,
        sequence=sequence,
        points=tuple(parse_point(text) for text in at or ()),
        seconds=seconds,
        optimizer=None if optimizer_name == "none" else optimizer_name,
        implementation=implementation or "foreach",
        drive=nvme,
        every_mesh=every_mesh,
        name=name or description.name,
        cluster=cluster,
    )
    _measured(build, description, options, device, output)


@profile.command()
def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Profiles of one model and cluster.")],
    name: Annotated[str | None, typer.Option(help="Name of the result; that of the first.")] = None,
    output: Output = None,
) -> None:
    """Put profiles of several hosts or runs together: medians of medians, and the widest quantiles.

    [dim]Examples[/dim]

    shardwright profile merge host-a.json host-b.json -o profile.json

    A host that contradicts the others by more than noise is refused, with its numbers.
    """
    from api.cli.documents import load_profile, require_place
    from planner.profiles.merge import merge as merged

    if output is not None:
        require_place(output)
    _give(merged([load_profile(path) for path in files], name=name), output)


@profile.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A table (.csv), a trace of torch.profiler, or a file with profiles."),
    ],
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of a trace: the description of the model.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option("--seq", metavar="TOKENS", help="Of a trace: tokens per sequence.")
    ] = None,
    micro_batch: Annotated[
        int, typer.Option(metavar="SEQUENCES", help="Of a trace: sequences per rank in one forward.")
    ] = 1,
    name: Annotated[str | None, typer.Option(help="Name of the profile.")] = None,
    output: Output = None,
) -> None:
    """Make a profile of measurements that you have: a CSV, a Kineto trace, or what scripts/gpu_check.py wrote.

    [dim]Examples[/dim]

    shardwright profile import blocks.csv -o profile.json

    shardwright profile import trace.json --model model.json --micro-batch 2 --seq 4096 -o profile.json

    shardwright profile import gpu_check.json --name NAME -o profile.json
    """
    from api.cli.documents import load_model, read_text, require_place
    from planner.profiles import refuse_implausible
    from planner.profiles.imports import read_measurements

    if output is not None:
        require_place(output)
    found = read_measurements(
        read_text(file),
        is_table=file.suffix.lower() == ".csv",
        model=load_model(str(model)) if model is not None else None,
        size=(micro_batch, sequence),
        name=name,
        source=str(file),
    )
    refuse_implausible(found)
    _give(found, output)


def _measured(
    build: "Callable[[], TrainingExample]",
    description: "ModelDescription",
    options: Any,  # noqa: ANN401 - ProfileOptions, which needs torch
    device: str | None,
    output: Path | None,
) -> None:
    import torch
    import torch.distributed as dist

    from runtime_client.profile import World
    from runtime_client.profile import profile as run

    world = World.join(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        with _bar(shown=world.rank == 0) as on_step:
            found = run(build, description, options, world=world, on_step=on_step)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    if world.rank == 0:
        _give(found.profile, output)
        _tell(found)


@contextmanager
def _bar(*, shown: bool) -> "Iterator[Callable[[int, int, str], None]]":
    """A bar on a terminal, lines elsewhere; nothing on ranks other than the first."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from api.cli.render.console import stderr

    console = stderr()
    columns = (BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    with Progress(
        *columns, TextColumn("{task.description}"), console=console, transient=True, disable=not shown
    ) as bar:
        task = bar.add_task("", total=None)

        def on_step(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)
            if shown and what and not console.is_terminal:
                console.print(f"{done + 1}/{total} {what}", soft_wrap=True, markup=False, highlight=False)

        yield on_step


def _tell(found: "Profiled") -> None:
    from api.cli.render.console import stderr
    from planner.profiles import ImplausibleProfile, refuse_implausible

    made = found.profile
    where = f"{made.provenance.device}, torch {made.provenance.torch_version}"
    stderr().print(
        f"{made.name}: {len(made.calls)} calls, {len(made.collectives)} curves of collectives, "
        f"{len(made.copies)} copies on {where}",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    for one in found.skipped:
        stderr().print(f"not measured: {one.what}: {one.why}", soft_wrap=True, highlight=False, markup=False)
    try:
        refuse_implausible(made)
    except ImplausibleProfile as error:
        reason = f"no plan will take this profile; did something else run meanwhile? {error}"
        stderr().print(reason, soft_wrap=True, highlight=False, markup=False)


def _give(made: "Profile", output: Path | None) -> None:
    from api.cli.documents import write_document

    if output is None:
        typer.echo(made.to_json(), nl=False)
    else:
        write_document(made, output)


def _subject(
    target: str | None, hf: Path | None, model: Path | None, micro_batch: int, sequence: int, param_dtype: str
) -> "tuple[Callable[[], TrainingExample], ModelDescription]":
    """The builder and the description that was given, or is made."""
    from api.cli.describe import default_name, found_builder
    from api.cli.documents import load_model
    from api.cli.requests import parse_dtype
    from runtime_client.describe import describe

    dtype = parse_dtype(param_dtype, option="--param-dtype")
    build = found_builder(target, hf)
    if model is not None:
        return build, load_model(str(model))
    return build, describe(
        build, name=default_name(target, hf), micro_batch=micro_batch, sequence=sequence, param_dtype=dtype
    )


def parse_point(text: str) -> "TracePoint":
    """A size from `2x4096`.

    Raises:
        InvalidDocument: the text is none.
    """
    from planner.schema import InvalidDocument, TracePoint

    batch, _, tokens = text.lower().partition("x")
    if not (batch.isdecimal() and tokens.isdecimal() and int(batch) and int(tokens)):
        raise InvalidDocument(f"--at {text!r} is not a size; write BATCHxTOKENS, e.g. 2x4096")
    return TracePoint(micro_batch=int(batch), sequence=int(tokens))
