"""Templates: `page` is how every page answers."""

import json
from collections.abc import Mapping
from functools import cache
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from api.dashboard.formats import FILTERS
from api.dashboard.forms import TOKEN_FIELD
from api.dashboard.static_files import address_of
from api.service.sessions import form_token

NAVIGATION = (
    ("overview", "/", "Overview"),
    ("plans", "/plans", "Plans"),
    ("lineages", "/lineages", "Lineages"),
    ("clusters", "/clusters", "Clusters"),
    ("regenerations", "/regenerations", "Regenerations"),
    ("jobs", "/jobs", "Jobs"),
    ("what-if", "/what-if", "What-if"),
)
"""Name, address and words of each entry; a template says with `section` which one it belongs to."""
NOTICES = {
    "logged-out": "You are signed out.",
    "cancelled": "Cancelled.",
    "retried": "The request was posted again; this is its new job.",
    "activated": "The revision is active now.",
    "started": "The cluster was changed; its plans are made again.",
    "accepted": "Accepted: the new revision is active.",
    "rejected": "Rejected: the old revision stays active.",
}
"""What `?notice=` may make a page say, after a form."""
HTMX_CONFIG = json.dumps(
    {"includeIndicatorCSS": False, "noSwap": [204, 304, "4xx", "5xx"], "history": "reload", "extensions": "none"}
)


@cache
def environment() -> Environment:
    """Templates of the package; everything is escaped, and a name that is not there is an error."""
    found = Environment(
        loader=PackageLoader("api.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(FILTERS)
    found.filters["in_path"] = in_path
    found.globals.update(address=address, static=address_of, navigation=NAVIGATION, htmx_config=HTMX_CONFIG)
    return found


def page(request: Request, template: str, /, status: int = 200, **values: object) -> HTMLResponse:
    """Render a template. Templates also know `caller` (None before login), `csrf()` for forms, and `notice`.

    Args:
        request: What is answered; its route has to be a `PageRoute`.
        template: Name of a file in `templates/`.
        status: Of the answer.
        values: What the template shows.
    """
    token = form_token(request.state.cookie)
    text = (
        environment()
        .get_template(template)
        .render(
            request=request,
            caller=getattr(request.state, "caller", None),
            is_session=getattr(request.state, "is_session", False),
            form_token=token,
            csrf=lambda: Markup('<input type="hidden" name="{}" value="{}">').format(TOKEN_FIELD, token),
            ask_command=_ask_command(request),
            notice=NOTICES.get(request.query_params.get("notice", "")) if status < 400 else None,
            **values,
        )
    )
    return HTMLResponse(text, status)


def _ask_command(request: Request) -> str:
    """How to ask this server for a first plan."""
    key = ' -H "Authorization: Bearer $SHARDWRIGHT_API_KEY"' if getattr(request.state, "is_session", False) else ""
    return (
        "shardwright plan llama-3-8b h100-8 --seq 4096 --global-batch 64 --save-request request.json\n"
        f"curl -s {request.base_url}v1/plans{key} -H 'content-type: application/json' -d @request.json"
    )


def address(path: str, state: Mapping[str, object] | None = None, /, **changes: object) -> str:
    """A path with what a page shows in its query: `state`, with changes; what is empty or None is left out.

    >>> address("/plans", {"name": "a b", "cursor": "x"}, cursor=None, sort="gap")
    '/plans?name=a+b&sort=gap'
    """
    shown = {name: value for name, value in {**(state or {}), **changes}.items() if value not in (None, "")}
    return f"{path}?{urlencode(shown)}" if shown else path


def in_path(text: str) -> str:
    """A name as one part of a path."""
    return quote(text, safe="")
