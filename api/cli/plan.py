"""`shardwright plan`."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.options import RequestOptions, takes_request

NOTHING_FITS = 3
"""Exit code when no plan fits."""


@takes_request
def plan(
    options: RequestOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan here.")
    ] = None,
    save_request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the request here, for check and for later.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan document and nothing else.")] = False,
) -> None:
    """Find the best plan for a model on a cluster, with a proof of how good it is.

    [dim]Examples[/dim]

    shardwright plan llama-3-8b h100-8 --seq 4096 --global-batch 64 -o plan.json

    shardwright plan model.json cluster.json --seq 8192 --global-batch 512 --budget 70GiB

    shardwright plan --request request.json --json

    Exit codes: 0 a plan, 2 an error in what you gave, 3 nothing fits. Ctrl-C keeps the best plan found so far.
    """
    from api.cli.documents import require_place, write_document

    for place in (output, save_request):
        if place is not None:
            require_place(place)
    request = options.to_request()
    if save_request is not None:
        write_document(request, save_request)

    from api.cli.progress import ProgressLine
    from api.cli.render.console import show, stderr
    from api.cli.render.plan_page import plan_page
    from planner.plan import make_plan

    with ProgressLine(stderr()) as line:
        made = make_plan(request, on_progress=line)
    if output is not None:
        write_document(made, output)
    if json:
        typer.echo(made.to_json(), nl=False)
    else:
        show(plan_page(made, request, saved_as=output, words=options.words()))
    if made.body.outcome == "infeasible":
        raise typer.Exit(NOTHING_FITS)
