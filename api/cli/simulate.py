"""`shardwright simulate`."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.options import RequestOptions, takes_request

_BY_HAND = "The configuration, written by hand"


@takes_request
def simulate(
    options: RequestOptions,
    decisions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Decisions, or a plan that has them, instead of the options below.",
            rich_help_panel=_BY_HAND,
        ),
    ] = None,
    shard: Annotated[
        int | None,
        typer.Option(metavar="N", help="Shard degree; the rest replicates. All ranks.", rich_help_panel=_BY_HAND),
    ] = None,
    reshard: Annotated[
        str,
        typer.Option(metavar="true|false|N", help="reshard_after_forward of each block.", rich_help_panel=_BY_HAND),
    ] = "true",
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="none|full|GLOB",
            help="Blocks to checkpoint in full, e.g. 'layers.*'. Repeatable.",
            rich_help_panel=_BY_HAND,
        ),
    ] = None,
    prefetch: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Blocks gathered ahead, each way; 0 is FSDP2's implicit prefetch.",
            rich_help_panel=_BY_HAND,
        ),
    ] = 0,
    unit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH[,PATH...]",
            help="A further unit beside the blocks, e.g. norm,lm_head. Repeatable.",
            rich_help_panel=_BY_HAND,
        ),
    ] = None,
    reduce_buffers: Annotated[
        int,
        typer.Option(metavar="K", help="Reduce-scatter inputs kept in flight.", rich_help_panel=_BY_HAND),
    ] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print the predictions as JSON and nothing else.")] = False,
) -> None:
    """Predict time and memory of a configuration that you write yourself. Nothing is searched.

    [dim]Examples[/dim]

    shardwright simulate llama-3-8b h100-8 --seq 4096 --global-batch 64 --checkpoint full

    shardwright simulate llama-3-8b h100-8 --seq 4096 --global-batch 64 --reshard false --checkpoint 'layers.1*'

    shardwright simulate --request request.json --decisions plan.json
    """
    request = options.to_request()

    from api.cli.by_hand import ByHand
    from api.cli.documents import load_decisions
    from api.cli.render.console import show
    from api.cli.render.predictions_page import predictions_page
    from planner.simulate import predict

    by_hand = ByHand(
        shard=shard,
        reshard=reshard,
        checkpoint=tuple(checkpoint or ()),
        prefetch=prefetch,
        units=tuple(unit or ()),
        reduce_buffers=reduce_buffers,
    )
    chosen = by_hand.decisions(request) if decisions is None else load_decisions(decisions)
    predictions = predict(request, chosen)
    if json:
        typer.echo(predictions.model_dump_json(exclude_defaults=True, indent=1))
    else:
        show(predictions_page(predictions, chosen, request))
