"""`shardwright clusters` and `shardwright regenerations`: clusters change on a service, plans are made again."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer

from api.cli.groups import group
from api.cli.remote import DEFAULT_URL, Url

clusters = group("Say what became of a cluster, so that its plans are made again.")
regenerations = group("Plans that are made again: progress, verdicts, what waits for you.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name in the cluster's description.")]
RegenerationId = Annotated[str, typer.Argument(metavar="REGENERATION", help="Its identity: reg_...")]
Numbers = Annotated[
    list[int] | None, typer.Argument(metavar="ITEM...", help="Numbers of items; none for all that wait.")
]


@clusters.command()
def revise(
    name: Name,
    file: Annotated[
        str | None, typer.Option("--to", metavar="FILE", help="The whole new description, or a shipped one.")
    ] = None,
    nodes_lost: Annotated[int | None, typer.Option(min=1, metavar="N", help="Nodes that are gone.")] = None,
    nodes_added: Annotated[int | None, typer.Option(min=1, metavar="N", help="Nodes that are new.")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Usable memory of a device, e.g. 70GiB.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="Other devices, by catalog name.")] = None,
    degraded: Annotated[
        str | None,
        typer.Option("--degraded", metavar="LINK=SHARE", help="Bandwidth left: inter_node=0.5, rail, intra_node."),
    ] = None,
    group: Annotated[int, typer.Option(min=0, metavar="N", help="Node group that changes.")] = 0,
    within: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="PERCENT", help="Activate what fits and is at most so much slower. [default: 0]"
        ),
    ] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Activate nothing without a person.")] = False,
    only_lineages: Annotated[bool, typer.Option("--only-lineages", help="Leave other plans as they are.")] = False,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Kept with every new revision.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be made again.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Change a cluster on the service; every plan that rests on it is made again.

    [dim]Examples[/dim]

    shardwright clusters revise h100-64 --nodes-lost 1 --why "rack 7 lost power" --dry-run

    shardwright clusters revise h100-64 --degraded inter_node=0.5 --within 10
    """
    from api.cli.remote import Remote, path_of
    from api.cli.render.console import show
    from api.cli.render.regenerations_page import preview_page, regeneration_page

    body: dict[str, Any] = {"why": why, "dry_run": dry_run, "scope": "lineages" if only_lineages else "all"}
    if ask or within is not None:
        body["policy"] = {"activate_within_percent": None if ask else within}
    if file is not None:
        body["cluster"] = _description(file)
    changes = [
        *([{"change": "nodes_lost", "group": group, "num_nodes": nodes_lost}] if nodes_lost else []),
        *([{"change": "nodes_added", "group": group, "num_nodes": nodes_added}] if nodes_added else []),
        *([{"change": "device", "group": group, "device": device}] if device else []),
        *([{"change": "memory", "group": group, "device_memory_bytes": _size(memory)}] if memory else []),
        *([_degraded(degraded, group)] if degraded else []),
    ]
    if changes:
        body["changes"] = changes
    found = Remote(url).send("POST", path_of("clusters", name, "revisions"), body)
    show(preview_page(found) if dry_run else regeneration_page(found, []))


@clusters.command("history")
def cluster_history(name: Name, url: Url = DEFAULT_URL) -> None:
    """Show what a cluster was when."""
    from api.cli.remote import Remote, path_of
    from api.cli.render.console import show
    from api.cli.render.regenerations_page import cluster_page

    show(cluster_page(Remote(url).get(path_of("clusters", name, "revisions"), limit=200)["items"]))


@regenerations.command("list")
def list_regenerations(url: Url = DEFAULT_URL) -> None:
    """List regenerations, newest first, with their progress."""
    from api.cli.remote import Remote, path_of
    from api.cli.render.console import show
    from api.cli.render.regenerations_page import regenerations_page

    show(regenerations_page(Remote(url).get(path_of("regenerations"), limit=50)["items"]))


@regenerations.command("show")
def show_regeneration(
    regeneration: RegenerationId,
    review: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only items that are waiting, activated, rejected ...")
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the progress of a regeneration, and each plan with its verdict and reasons."""
    from api.cli.remote import Remote, path_of
    from api.cli.render.console import show
    from api.cli.render.regenerations_page import regeneration_page

    service = Remote(url)
    found = service.get(path_of("regenerations", regeneration))
    show(regeneration_page(found, service.get(found["links"]["items"], review=review, limit=200)["items"]))


@regenerations.command()
def accept(regeneration: RegenerationId, numbers: Numbers = None, url: Url = DEFAULT_URL) -> None:
    """Activate new revisions that wait for a person."""
    _review(regeneration, numbers, "accept", url)


@regenerations.command()
def reject(regeneration: RegenerationId, numbers: Numbers = None, url: Url = DEFAULT_URL) -> None:
    """Leave the old revisions active."""
    _review(regeneration, numbers, "reject", url)


@regenerations.command()
def cancel(regeneration: RegenerationId, url: Url = DEFAULT_URL) -> None:
    """Make nothing more again; what is done stays."""
    from api.cli.remote import Remote, path_of
    from api.cli.render.console import show
    from api.cli.render.regenerations_page import regeneration_page

    show(regeneration_page(Remote(url).send("POST", path_of("regenerations", regeneration, "cancel"), {}), []))


def _review(regeneration: str, numbers: list[int] | None, decision: Literal["accept", "reject"], url: str) -> None:
    from api.cli.remote import Remote, path_of

    service, items = Remote(url), path_of("regenerations", regeneration, "items")
    chosen = numbers or list(_waiting(service, items))
    for number in chosen:
        item = service.send("POST", f"{items}/{number}/{decision}", {})
        typer.echo(f"item {number}: {item['review']}")
    if not chosen:
        typer.echo("nothing waits", err=True)


def _waiting(service: Any, items: str) -> Iterator[int]:  # noqa: ANN401 - imported late
    cursor = None
    while True:
        page = service.get(items, review="waiting", limit=200, cursor=cursor)
        yield from (item["number"] for item in page["items"])
        cursor = page["next"]
        if cursor is None:
            return


def _description(place: str) -> Any:  # noqa: ANN401 - JSON
    from api.cli.documents import load_cluster

    return load_cluster(place).model_dump(mode="json")


def _size(text: str) -> int:
    from api.cli.requests import parse_size

    return parse_size(text, option="--memory")


def _degraded(text: str, group: int) -> dict[str, Any]:
    from planner.schema import InvalidDocument

    link, _, share = text.partition("=")
    try:
        return {"change": "link_degraded", "link": link, "group": group, "share": float(share)}
    except ValueError:
        raise InvalidDocument(f"--degraded {text!r} lacks a share; write LINK=SHARE, e.g. inter_node=0.5") from None
