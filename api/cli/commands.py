"""The table of commands."""

import typer

from api.cli.apply import apply
from api.cli.catalog import catalog
from api.cli.check import check
from api.cli.db import db
from api.cli.describe import describe
from api.cli.diff import diff
from api.cli.dryrun import dryrun
from api.cli.failures import Commands
from api.cli.groups import HELP_OPTIONS
from api.cli.jobs import jobs
from api.cli.keys import keys
from api.cli.layout import layout
from api.cli.lineages import lineages
from api.cli.plan import plan
from api.cli.profile import profile
from api.cli.regenerations import clusters, regenerations
from api.cli.report import report
from api.cli.schema import schema
from api.cli.serve import serve
from api.cli.simulate import simulate
from api.cli.timeline import timeline
from api.cli.version import version
from api.cli.worker import worker

app = typer.Typer(
    cls=Commands,
    name="shardwright",
    help="Plan PyTorch FSDP2 training: search every sharding knob together, and prove the answer.",
    epilog="First steps:  shardwright plan llama-3-8b h100-8 --seq 4096 --global-batch 64",
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
)

_PLANNING = "Planning"
_DESCRIBING = "Describing"
_AROUND = "Around it"

app.command(rich_help_panel=_PLANNING)(plan)
app.command(rich_help_panel=_PLANNING)(simulate)
app.command(rich_help_panel=_PLANNING)(check)
app.command(rich_help_panel=_PLANNING)(diff)
app.command(rich_help_panel=_PLANNING)(layout)
app.command(rich_help_panel=_PLANNING)(timeline)
app.command(rich_help_panel=_PLANNING)(apply)
app.command(rich_help_panel=_PLANNING)(dryrun)
app.command(rich_help_panel=_DESCRIBING)(describe)
app.add_typer(profile, name="profile", rich_help_panel=_DESCRIBING)
app.command(rich_help_panel=_DESCRIBING)(catalog)
app.command(rich_help_panel=_DESCRIBING)(schema)
app.command(rich_help_panel=_AROUND)(report)
app.command(rich_help_panel=_AROUND)(serve)
app.command(rich_help_panel=_AROUND)(worker)
app.add_typer(jobs, name="jobs", rich_help_panel=_AROUND)
app.add_typer(keys, name="keys", rich_help_panel=_AROUND)
app.add_typer(db, name="db", rich_help_panel=_AROUND)
app.add_typer(lineages, name="lineages", rich_help_panel=_AROUND)
app.add_typer(clusters, name="clusters", rich_help_panel=_AROUND)
app.add_typer(regenerations, name="regenerations", rich_help_panel=_AROUND)
app.command(rich_help_panel=_AROUND)(version)
