"""`shardwright plan`."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.options import RequestOptions, takes_request

NOTHING_FITS = 3
"""Exit code when no plan fits."""
_SEVERAL = "Instead of one plan for the job as it is"


@takes_request
def plan(
    options: RequestOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the plan here; of a front, plan.json becomes plan-1.json, plan-2.json, ...",
        ),
    ] = None,
    save_request: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the request here, for check and for later; numbered as the plans of a front are.",
        ),
    ] = None,
    front: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Up to N plans that trade step time for memory: the fastest, the leanest, and between. "
            "--objective does not matter.",
            rich_help_panel=_SEVERAL,
        ),
    ] = None,
    largest_micro_batch: Annotated[
        bool,
        typer.Option(
            "--largest-micro-batch",
            help="The largest micro-batch that fits, instead of --micro-batch.",
            rich_help_panel=_SEVERAL,
        ),
    ] = False,
    fewest_ranks: Annotated[
        bool,
        typer.Option(
            "--fewest-ranks",
            help="The fewest devices of the cluster's kind that do: whole nodes, or a divisor of one. Fixed meshes "
            "are open again.",
            rich_help_panel=_SEVERAL,
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the plan document and nothing else; of a front, a list.")
    ] = False,
) -> None:
    """Find the best plan for a model on a cluster, with a proof of how good it is.

    [dim]Examples[/dim]

    shardwright plan llama-3-8b h100-8 --seq 4096 --global-batch 64 -o plan.json

    shardwright plan model.json cluster.json --seq 8192 --global-batch 512 --budget 70GiB

    shardwright plan llama-3-8b h100-8 --seq 4096 --global-batch 64 --objective peak-memory --step-time 4s

    shardwright plan llama-3-8b h100-8 --seq 4096 --global-batch 64 --front 4

    shardwright plan --request request.json --json

    Exit codes: 0 a plan, 2 an error in what you gave, 3 nothing fits. Ctrl-C keeps the best plan found so far.
    """
    from planner.schema import InconsistentRequest

    modes = {
        "--front": front is not None,
        "--largest-micro-batch": largest_micro_batch,
        "--fewest-ranks": fewest_ranks,
    }
    asked = [mode for mode, is_given in modes.items() if is_given]
    if len(asked) > 1:
        raise InconsistentRequest(f"{' and '.join(asked)} exclude each other; give one of them")
    if not asked:
        fits = _show_one(options, output, save_request, json=json)
    else:
        from api.cli.sweeps import Places, show_fewest_ranks, show_front, show_largest_micro_batch

        places = Places(plan=output, request=save_request)
        if front is not None:
            fits = show_front(options, front, places, json=json)
        elif largest_micro_batch:
            fits = show_largest_micro_batch(options, places, json=json)
        else:
            fits = show_fewest_ranks(options, places, json=json)
    if not fits:
        raise typer.Exit(NOTHING_FITS)


def _show_one(options: RequestOptions, output: Path | None, save_request: Path | None, *, json: bool) -> bool:
    """Plan, write and print; whether anything fits."""
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
    return made.body.outcome == "feasible"
