"""`shardwright catalog`."""

from typing import Annotated

import typer


def catalog(
    json: Annotated[bool, typer.Option("--json", help="Print the data sheets as JSON.")] = False,
) -> None:
    """List the devices and links that a cluster description may name, and the shipped examples.

    [dim]Example[/dim]

    shardwright catalog
    """
    from planner.catalog import device, device_names, link, link_names

    devices = [device(name) for name in device_names()]
    links = [link(name) for name in link_names()]
    if json:
        import json as text

        sheets = {
            "devices": [sheet.model_dump(mode="json", exclude_defaults=True) for sheet in devices],
            "links": [sheet.model_dump(mode="json", exclude_defaults=True) for sheet in links],
        }
        typer.echo(text.dumps(sheets, indent=1))
        return
    from api.cli.documents import shipped
    from api.cli.render.catalog_page import catalog_page
    from api.cli.render.console import show

    show(catalog_page(devices, links, models=list(shipped("models")), clusters=list(shipped("clusters"))))
