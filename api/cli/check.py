"""`shardwright check`."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.options import RequestOptions, takes_request


@takes_request
def check(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan to check.")],
    options: RequestOptions,
) -> None:
    """Recompute a plan's time, memory and feasibility with the independent checker.

    [dim]Examples[/dim]

    shardwright check plan.json --request request.json

    shardwright check plan.json llama-3-8b h100-8 --seq 4096 --global-batch 64

    Exit codes: 0 passed, 1 problems found, 2 an error in what you gave.
    """
    from api.cli.documents import load_plan

    body = load_plan(plan)
    request = options.to_request()

    from api.cli.render.check_page import check_page
    from api.cli.render.console import show
    from planner.check import check as check_plan

    report = check_plan(request, body)
    show(check_page(report, body))
    if not report.passed:
        raise typer.Exit(1)
