"""`shardwright describe`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.shared_options import HfConfig, MicroBatch, Output, Sequence, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime_client.describe import TrainingExample


def describe(
    target: Target = None,
    hf: HfConfig = None,
    sequence: Sequence = 4096,
    micro_batch: MicroBatch = 1,
    param_dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="Element type to trace in: bf16, fp16, fp32, none.")
    ] = "bf16",
    name: Annotated[str | None, typer.Option(help="Name of the model in plans.")] = None,
    output: Output = None,
) -> None:
    """Describe a model for planning, on a CPU, without allocating it. Needs torch.

    TARGET is looked up among installed packages, then from the working directory.

    [dim]Examples[/dim]

    shardwright describe my_package.model:build --micro-batch 1 --seq 4096 -o model.json

    shardwright describe --hf config.json --seq 8192 -o model.json
    """
    from api.cli.requests import parse_dtype

    dtype = parse_dtype(param_dtype, option="--param-dtype")
    require_either(target, hf)

    from api.cli.documents import write_document
    from api.cli.render.console import stderr
    from runtime_client.describe import describe as trace

    console = stderr()
    with console.status("tracing the model"):
        build = found_builder(target, hf)
        description = trace(
            build,
            name=name or default_name(target, hf),
            micro_batch=micro_batch,
            sequence=sequence,
            param_dtype=dtype,
        )
    if output is None:
        typer.echo(description.to_json(), nl=False)
        return
    write_document(description, output)
    console.print(f"{description.name}: {description.num_parameters:,} parameters, {len(description.calls)} calls")


def require_either(target: str | None, hf: Path | None) -> None:
    """Refuse both ways to name a model, or neither.

    Raises:
        InconsistentRequest: as said.
    """
    from planner.schema import InconsistentRequest

    if (target is None) == (hf is None):
        raise InconsistentRequest("give either TARGET (pkg.module:build) or --hf config.json")


def found_builder(target: str | None, hf: Path | None) -> "Callable[[], TrainingExample]":
    """The builder of a target, looked up from the working directory too, or of a configuration.

    Raises:
        InconsistentRequest: as `require_either`.
        NoTarget: there is none.
    """
    require_either(target, hf)
    # Last on the path: a folder called `api` in the working directory must not shadow ours.
    sys.path.append(str(Path.cwd()))

    from runtime_client.describe import from_hf_config, load_target

    return from_hf_config(hf) if hf is not None else load_target(target or "")


def default_name(target: str | None, hf: Path | None) -> str:
    """Name of a model that was given none."""
    if hf is None:
        return target or "model"
    path = hf.resolve()
    return path.parent.name if path.stem == "config" else path.stem
