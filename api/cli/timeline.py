"""`shardwright timeline`."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.options import RequestOptions, takes_request
from api.cli.shared_options import Output


@takes_request
def timeline(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan, or decisions alone.")],
    options: RequestOptions,
    output: Output = None,
) -> None:
    """Write the predicted step as a trace that ui.perfetto.dev opens: streams, CPU, stalls, memory.

    The trace has each micro-batch that differs from the others once, and the optimizer step. Memory is shown beside
    the compute that needs it.

    [dim]Examples[/dim]

    shardwright timeline plan.json --request request.json -o trace.json

    shardwright timeline plan.json llama-3-8b h100-8 --seq 4096 --global-batch 64 -o trace.json
    """
    import json

    from api.cli.documents import load_decisions

    decisions = load_decisions(plan)
    request = options.to_request()

    from planner.simulate.timeline import timeline_of

    trace = timeline_of(request, decisions).chrome_trace(f"{request.model.name} on {request.cluster.name}")
    text = json.dumps(trace) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
