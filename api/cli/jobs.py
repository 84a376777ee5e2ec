"""`shardwright jobs`: searches of a running service."""

from typing import Annotated

import typer

from api.cli.groups import group
from api.cli.remote import DEFAULT_URL, Url

jobs = group("Searches of a running service: list, cancel.")


@jobs.command("list")
def list_jobs(
    state: Annotated[
        str | None,
        typer.Option(metavar="queued|running|succeeded|failed|cancelled|parked", help="Only these."),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """List jobs, newest first, with what became of each."""
    from api.cli.remote import Remote, path_of
    from api.cli.render.jobs_page import job_lines

    page = Remote(url).get(path_of("jobs"), state=state, limit=200)
    for line in job_lines(page["items"]):
        typer.echo(line)
    if page["next"] is not None:
        typer.echo("and more; choose with --state")


@jobs.command()
def cancel(
    job: Annotated[str, typer.Argument(metavar="JOB_ID", help="Identity of the job, as `jobs list` shows it.")],
    url: Url = DEFAULT_URL,
) -> None:
    """End a search; its best plan so far is kept, and the next equal request starts anew."""
    from api.cli.remote import Remote, path_of

    found = Remote(url).send("POST", f"{path_of('jobs', job)}/cancel", None)
    best = found["provisional_plan_id"]
    kept = "" if best is None else f"; best plan so far: {best}"
    typer.echo(f"{found['job_id']} {found['state']}{kept}")
