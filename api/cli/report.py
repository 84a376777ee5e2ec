"""`shardwright report`."""

from typing import Annotated

import typer

from api.cli.remote import DEFAULT_URL, Url


def report(
    plan: Annotated[str, typer.Argument(metavar="PLAN_ID", help="Identity of a plan on the service: sha256:...")],
    url: Url = DEFAULT_URL,
) -> None:
    """Hold a plan on a service against what jobs measured: step time, peak, and whether they drift.

    [dim]Example[/dim]

    shardwright report sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    """
    from api.cli.remote import Remote, path_of
    from api.cli.render.console import show
    from api.cli.render.report_page import report_page

    service = Remote(url)
    found = service.get(path_of("plans", plan, "measurements"))
    show(report_page(found, service.get(path_of("measurements"), plan=plan, limit=20)["items"]))
