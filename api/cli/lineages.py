"""`shardwright lineages`: revisions of plans on a running service, and which of them is active."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.groups import group
from api.cli.remote import DEFAULT_URL, Url

if TYPE_CHECKING:
    from planner.schema import PlanBody

lineages = group("Revisions of the plan of a job: list, compare, activate, roll back.")

Reference = Annotated[str, typer.Argument(metavar="LINEAGE", help="Name of the lineage, or its identity.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="Kept in the history.")]


@lineages.command("list")
def list_lineages(
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only lineages of this name.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """List lineages, newest first, with their active and newest revisions."""
    from api.cli.remote import Remote, path_of
    from api.cli.render.console import show
    from api.cli.render.lineages_page import lineages_page

    page = Remote(url).get(path_of("lineages"), name=name, limit=200)
    show(lineages_page(page["items"], more=page["next"] is not None))


@lineages.command("show")
def show_lineage(lineage: Reference, url: Url = DEFAULT_URL) -> None:
    """Show revisions, why each exists, and which was active when."""
    from api.cli.remote import Remote, path_of
    from api.cli.render.console import show
    from api.cli.render.lineages_page import history_page

    service = Remote(url)
    found = service.get(path_of("lineages", lineage))
    revisions = service.get(f"{found['links']['self']}/revisions", limit=50)["items"]
    activations = service.get(f"{found['links']['self']}/activations", limit=50)["items"]
    show(history_page(found, revisions, activations))


@lineages.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the lineage, e.g. the job's.")],
    plan: Annotated[str, typer.Argument(metavar="PLAN_ID", help="Identity of a plan on the service: sha256:...")],
    why: Why = "",
    url: Url = DEFAULT_URL,
) -> None:
    """Add a plan as the newest revision; the first one makes the lineage."""
    from api.cli.remote import Remote, path_of

    found = Remote(url).send("POST", path_of("lineages"), {"name": name, "plan": plan, "why": why})
    newest = found["newest"]
    typer.echo(f"{found['name']}: revision {newest['revision']}, {newest['why']}; {_active(found)}")


@lineages.command()
def activate(
    lineage: Reference,
    revision: Annotated[int, typer.Argument(min=1, metavar="REVISION", help="Its number.")],
    why: Why = "",
    url: Url = DEFAULT_URL,
) -> None:
    """Make a revision the one that launchers get."""
    from api.cli.remote import Remote, path_of

    service = Remote(url)
    _move(service, service.get(path_of("lineages", lineage)), revision, why)


@lineages.command()
def rollback(lineage: Reference, why: Why = "", url: Url = DEFAULT_URL) -> None:
    """Make the revision active that was active before."""
    from api.cli.remote import Remote, path_of
    from planner.schema import InconsistentRequest

    service = Remote(url)
    found = service.get(path_of("lineages", lineage))
    history = service.get(f"{found['links']['self']}/activations", limit=1)["items"]
    before = history[0]["previous_revision"] if history else None
    if before is None:
        raise InconsistentRequest(f"no other revision of {lineage} was ever active; there is nothing to go back to")
    _move(service, found, before, why or f"rollback from revision {history[0]['revision']}")


@lineages.command("diff")
def diff_revisions(
    lineage: Reference,
    before: Annotated[int, typer.Argument(min=1, metavar="A", help="The earlier revision.")],
    after: Annotated[int, typer.Argument(min=1, metavar="B", help="The later revision.")],
    url: Url = DEFAULT_URL,
) -> None:
    """Say in words and numbers how two revisions differ."""
    from api.cli.remote import Remote, path_of
    from api.cli.render.console import show
    from api.cli.render.difference_page import difference_page
    from api.cli.render.lineages_page import inputs_part

    service = Remote(url)
    found = service.get(path_of("lineages", lineage, "difference"), before=before, after=after)
    old, new = (_plan_of(service, lineage, number) for number in (before, after))
    show(inputs_part(found["inputs"]))
    show(difference_page(old, new))


@lineages.command()
def active(
    lineage: Reference,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the plan here instead of printing it."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="FILE", help="Model description, where several lineages share the name.")
    ] = None,
    world_size: Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks of the job.")] = None,
    trusted_key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Refuse plans that this public key did not sign.")
    ] = None,
    deadline_s: Annotated[float, typer.Option("--deadline", metavar="S", help="Seconds to wait.")] = 30.0,
    url: Url = DEFAULT_URL,
) -> None:
    """Get the active plan, as a launcher does: the last one that was active, marked stale, when nothing answers.

    [dim]Example[/dim]

    shardwright lineages active llama-70b --world-size 512 -o plan.json && torchrun ... train.py plan.json
    """
    import os

    from api.cli.documents import load_model, require_place, write_document
    from api.cli.remote import KEY_VARIABLE
    from runtime_client.client import PlanClient

    if output is not None:
        require_place(output)
    fingerprint = None if model is None else load_model(model).fingerprint
    client = PlanClient(
        url, api_key=os.environ.get(KEY_VARIABLE), deadline_s=deadline_s, trusted_keys=trusted_key or ()
    )
    found = client.active(lineage, model=fingerprint, world_size=world_size)
    if found.stale:
        typer.echo(f"stale: {found.reason}; this is the plan of {found.age_s:.0f} s ago", err=True)
    if output is None:
        typer.echo(found.plan.to_json(), nl=False)
    else:
        write_document(found.plan, output)


def _plan_of(service: Any, lineage: str, revision: int) -> "PlanBody":  # noqa: ANN401 - imported late
    from api.cli.remote import path_of
    from planner.schema import Plan

    row = service.get(path_of("lineages", lineage, "revisions", revision))
    return Plan.from_json(service.bytes_of(row["links"]["plan"]), source=f"revision {revision}").body


def _move(service: Any, found: dict[str, Any], revision: int, why: str) -> None:  # noqa: ANN401 - imported late
    moved = service.send(
        "PUT", found["links"]["active"], {"revision": revision, "why": why}, If_Match=f'"{found["version"]}"'
    )
    was = found["active"]
    before = "" if was is None else f" (before: revision {was['revision']})"
    typer.echo(f"{moved['name']}: {_active(moved)}{before}")


def _active(found: dict[str, Any]) -> str:
    active = found["active"]
    return "no revision is active" if active is None else f"revision {active['revision']} is active"
