"""Options that several commands share, and the request that they make."""

import functools
import inspect
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

if TYPE_CHECKING:
    from planner.schema import PlanRequest

OptimizerChoice = Literal["adamw", "adam", "sgd", "sgd_momentum", "adafactor", "adamw_8bit", "muon"]
ImplementationChoice = Literal["foreach", "fused", "for_loop"]
ObjectiveChoice = Literal["step-time", "peak-memory"]

ATOM_FORMS = "element, flat:256, rows:16, tile:128x128, whole, or a name as nf4-64x256"

QUANTIZERS = "nf4, fp8_rowwise, fp8_blockwise, int8_rowwise, mx, nvfp4"

_WHAT = "What is trained"
_HOW = "How it is trained"
_SEARCH = "What is searched"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """All that makes a request: two documents and the workload, or one request file instead."""

    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A model description: a file, or the name of a shipped one."),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Argument(metavar="CLUSTER", help="A cluster description: a file, or the name of a shipped one."),
    ] = None
    request: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A whole request (see plan --save-request) instead of MODEL, CLUSTER and every option below.",
            rich_help_panel=_WHAT,
        ),
    ] = None
    sequence: Annotated[
        int | None,
        typer.Option("--seq", metavar="TOKENS", help="Tokens per sequence.", rich_help_panel=_WHAT),
    ] = None
    global_batch: Annotated[
        int | None,
        typer.Option(
            metavar="SEQUENCES", help="Sequences per optimizer step, over all ranks.", rich_help_panel=_WHAT
        ),
    ] = None
    micro_batch: Annotated[
        int,
        typer.Option(metavar="SEQUENCES", help="Sequences per rank in one forward.", rich_help_panel=_WHAT),
    ] = 1
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Measurements; whatever is missing comes from data sheets.",
            rich_help_panel=_WHAT,
        ),
    ] = None
    robust: Annotated[
        bool,
        typer.Option(
            "--robust",
            help="Count on the 99th percentile of what links were measured to take: for shared or slow ones.",
            rich_help_panel=_WHAT,
        ),
    ] = False
    optimizer: Annotated[OptimizerChoice, typer.Option(help="Optimizer.", rich_help_panel=_HOW)] = "adamw"
    optimizer_impl: Annotated[
        ImplementationChoice,
        typer.Option(help="Implementation of the optimizer; foreach needs a transient copy.", rich_help_panel=_HOW),
    ] = "foreach"
    param_dtype: Annotated[
        str,
        typer.Option(
            metavar="DTYPE", help="Computes and gathers in: bf16, fp16, fp32, none.", rich_help_panel=_HOW
        ),
    ] = "bf16"
    reduce_dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="Reduces gradients in.", rich_help_panel=_HOW)
    ] = "fp32"
    atom: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB=ATOM",
            help=f"What shards must not cut in parameters, by full name: {ATOM_FORMS}. Repeatable.",
            rich_help_panel=_HOW,
        ),
    ] = None
    quantizer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[GLOB=]NAME",
            help=f"Quantizer of weights, whose blocks shards must not cut: {QUANTIZERS}. Without a glob of all "
            "matrices but embeddings and heads. Repeatable.",
            rich_help_panel=_HOW,
        ),
    ] = None
    conditional: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Modules that some rank skips in some micro-batch (towers, experts), by path. Repeatable.",
            rich_help_panel=_HOW,
        ),
    ] = None
    forward_method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Method that enters the model beside forward, as generate or encoder.encode. Repeatable.",
            rich_help_panel=_HOW,
        ),
    ] = None
    torch_version: Annotated[
        str,
        typer.Option(metavar="X.Y", help="Torch of the trainer: limits the knobs.", rich_help_panel=_HOW),
    ] = "2.13"
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Device memory for tensors, e.g. 70GiB; without it, the device less its reserves.",
            rich_help_panel=_SEARCH,
        ),
    ] = None
    step_time: Annotated[
        str | None,
        typer.Option(
            metavar="LIMIT",
            help="Longest step that will do, e.g. 800ms or 1.2s; for --objective peak-memory above all.",
            rich_help_panel=_SEARCH,
        ),
    ] = None
    fix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KNOB=VALUE",
            help="Take a decision yourself, e.g. layers.*.reshard_after_forward=true. Repeatable.",
            rich_help_panel=_SEARCH,
        ),
    ] = None
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KNOB=VALUES",
            help="Other values that the search may choose: micro_batch=2,4 or reduce_dtype=bf16 or "
            "optimizer_implementation=fused. Repeatable.",
            rich_help_panel=_SEARCH,
        ),
    ] = None
    objective: Annotated[ObjectiveChoice, typer.Option(help="What to minimise.", rich_help_panel=_SEARCH)] = (
        "step-time"
    )
    gap: Annotated[
        float | None,
        typer.Option(metavar="FRACTION", help="Stop this close to the bound.", rich_help_panel=_SEARCH),
    ] = None
    effort: Annotated[
        float | None,
        typer.Option(
            metavar="UNITS",
            help="Deterministic search time: the same value gives the same plan.",
            rich_help_panel=_SEARCH,
        ),
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Safety net in wall-clock seconds.", rich_help_panel=_SEARCH),
    ] = None
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the search.", rich_help_panel=_SEARCH)] = 0

    def to_request(self) -> "PlanRequest":
        """The request.

        Raises:
            ShardwrightError: a document is missing or invalid, or options contradict each other.
        """
        from api.cli.requests import request_of

        return request_of(self)

    def given(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) not in (field.default, [])
        }

    def words(self) -> str:
        """The shell words that give these options again."""
        positional = [self.given().get("model"), self.given().get("cluster")]
        named: list[str] = []
        for name, value in self.given().items():
            if name in ("model", "cluster"):
                continue
            flag = "--seq" if name == "sequence" else f"--{name.replace('_', '-')}"
            if value is True:
                named.append(flag)
                continue
            for item in value if isinstance(value, list) else [value]:
                named += [flag, str(item)]
        return shlex.join([word for word in positional if word is not None] + named)


def takes_request(command: Callable[..., None]) -> Callable[..., None]:
    """Spread a command's `options: RequestOptions` into one command-line option per field."""
    own = inspect.signature(command, eval_str=True)
    hints = get_type_hints(RequestOptions, include_extras=True)
    spread = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[field.name], default=field.default
        )
        for field in fields(RequestOptions)
    ]
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in own.parameters.items()
        if name != "options"
    ]
    ordered = sorted(parameters + spread, key=lambda parameter: parameter.default is not inspect.Parameter.empty)

    @functools.wraps(command)
    def run(**values: Any) -> None:  # noqa: ANN401 - one value per option
        options = RequestOptions(**{field.name: values.pop(field.name) for field in fields(RequestOptions)})
        command(options=options, **values)

    run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    return run
