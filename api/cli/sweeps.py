"""The modes of `shardwright plan` that make several plans, or change the sizes of the job."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from api.cli.documents import require_place, write_document
from api.cli.options import RequestOptions
from api.cli.progress import ProgressLine
from api.cli.render.console import show, stderr
from api.cli.render.front_page import front_page
from api.cli.render.plan_page import plan_page
from api.quantities import count
from planner.sweeps import Extreme, fewest_ranks, front, largest_micro_batch

if TYPE_CHECKING:
    from planner.schema import PlanRequest
    from planner.sweeps import Planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where documents go; None where they are not written."""

    plan: Path | None
    request: Path | None

    def numbered(self, number: int) -> "Places":
        """`plan.json` becomes `plan-1.json`."""
        return Places(plan=_numbered(self.plan, number), request=_numbered(self.request, number))

    def require(self) -> None:
        """Refuse places where nothing can be written; see `require_place`."""
        for place in (self.plan, self.request):
            if place is not None:
                require_place(place)

    def write(self, planned: "Planned") -> None:
        """Both documents."""
        if self.plan is not None:
            write_document(planned.plan, self.plan)
        if self.request is not None:
            write_document(planned.request, self.request)


def _numbered(path: Path | None, number: int) -> Path | None:
    return None if path is None else path.with_name(f"{path.stem}-{number}{path.suffix}")


def show_front(options: RequestOptions, num_points: int, places: Places, *, json: bool) -> bool:
    """Plan, write and print a front; whether anything fits.

    Raises:
        ShardwrightError: as `RequestOptions.to_request` and `planner.sweeps.front`.
    """
    places.numbered(1).require()
    request = options.to_request()
    with ProgressLine(stderr()) as line:
        points = front(request, num_points, on_progress=line)
    is_feasible = points[0].predictions is not None
    numbered = [places.numbered(number) for number in range(1, len(points) + 1)]
    for place, point in zip(numbered, points, strict=True):
        place.write(point)
    if json:
        typer.echo(_as_list(points), nl=False)
    elif is_feasible:
        saved = [place.plan for place in numbered if place.plan is not None]
        show(front_page(points, request, saved_as=saved, words=f"{options.words()} --front {num_points}"))
    else:
        show(plan_page(points[0].plan, points[0].request, saved_as=numbered[0].plan, words=options.words()))
    return is_feasible


def _as_list(points: Sequence["Planned"]) -> str:
    return "[\n" + ",\n".join(point.plan.to_json().rstrip("\n") for point in points) + "\n]\n"


def show_largest_micro_batch(options: RequestOptions, places: Places, *, json: bool) -> bool:
    """Plan, write and print; whether anything fits."""
    places.require()
    request = options.to_request()
    with ProgressLine(stderr()) as line:
        found = largest_micro_batch(request, on_progress=line)
    size = found.planned.request.workload.micro_batch
    same = replace(options, micro_batch=size) if options.request is None else None
    remark = f"the largest micro-batch: {count(size, 'sequence')}" + _beyond(found, "with")
    return _show(found, options, same, places, remark, "--largest-micro-batch", json=json)


def show_fewest_ranks(options: RequestOptions, places: Places, *, json: bool) -> bool:
    """Plan, write and print; whether anything fits."""
    places.require()
    request = options.to_request()
    with ProgressLine(stderr()) as line:
        found = fewest_ranks(request, on_progress=line)
    ranks = found.planned.request.cluster.num_devices
    remark = f"the fewest: {count(ranks, 'rank')}" + _beyond(found, "on") + _batch(request, found.planned.request)
    return _show(found, options, None, places, remark, "--fewest-ranks", json=json)


def _beyond(found: Extreme, preposition: str) -> str:
    return "" if found.beyond is None else f"; {preposition} {found.beyond}: {found.why_not}"


def _batch(asked: "PlanRequest", planned: "PlanRequest") -> str:
    before, after = asked.workload.global_batch, planned.workload.global_batch
    ranks = planned.cluster.num_devices
    return (
        "" if before == after else f"\nthe global batch is {after}, because {before} cannot be split over {ranks}"
    )


def _show(
    found: Extreme,
    options: RequestOptions,
    same: RequestOptions | None,
    places: Places,
    remark: str,
    flag: str,
    *,
    json: bool,
) -> bool:
    """Print a plan; `same` are options that make its request, where there are any."""
    planned = found.planned
    places.write(planned)
    is_feasible = planned.predictions is not None
    if json:
        typer.echo(planned.plan.to_json(), nl=False)
    elif not is_feasible:
        show(plan_page(planned.plan, planned.request, saved_as=places.plan, words=options.words()))
    else:
        known = places.request is not None or same is not None
        words = f"{options.words()} {flag}"
        if places.request is not None:
            words = f"--request {shlex.quote(str(places.request))}"
        elif same is not None:
            words = same.words()
        page = plan_page(
            planned.plan, planned.request, saved_as=places.plan, words=words, remark=remark, is_of_words=known
        )
        show(page)
    return is_feasible
