"""`shardwright apply`."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.shared_options import Output


def apply(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.")],
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the `fully_shard` calls as Python, which needs torch alone.")
    ] = False,
    output: Output = None,
) -> None:
    """Show what applying a plan does: the exact `fully_shard` calls, as Python to read or to paste.

    A plan is applied inside the training job, by runtime_client.apply.apply_plan, which first checks that model,
    torch and ranks are those of the plan. The Python that this prints leaves these checks to you.

    [dim]Examples[/dim]

    shardwright apply plan.json --explain

    shardwright apply plan.json --explain -o sharding.py
    """
    from planner.schema import InconsistentRequest

    if not explain:
        raise InconsistentRequest(
            "a plan is applied inside the training job, by runtime_client.apply.apply_plan(model, plan); "
            "--explain prints the calls"
        )
    from planner.script import script
    from runtime_client.client import load_plan

    text = script(load_plan(plan).body)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
