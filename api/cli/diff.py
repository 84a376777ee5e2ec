"""`shardwright diff`."""

from pathlib import Path
from typing import Annotated

import typer


def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="The earlier plan.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The later plan.")],
) -> None:
    """Say in words and numbers how two plans differ.

    [dim]Example[/dim]

    shardwright diff plan-80gb.json plan-96gb.json
    """
    from api.cli.documents import load_plan
    from api.cli.render.console import show
    from api.cli.render.difference_page import difference_page

    show(difference_page(load_plan(before), load_plan(after)))
