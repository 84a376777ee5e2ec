"""`shardwright layout`."""

from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.options import OptimizerChoice

if TYPE_CHECKING:
    from planner.layout.atoms import DeclaredAtom, RowRange
    from planner.layout.plan import LayoutPlan
    from planner.schema import Atom, ModelDescription

_MOST_RANKS = 100_000
_ATOM_FORMS = "element, flat:256, rows:16, rows:16-128, tile:128x128, whole, or a name as nf4-64x256"


def layout(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model description: a file, or the name of a shipped one.")
    ],
    ranks: Annotated[
        str,
        typer.Option(
            metavar="N[,N...]", help="Shard degree; of several the largest that pads little, the rest replicates."
        ),
    ] = "8",
    atom: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB=ATOM", help=f"What stays together in parameters, by full name: {_ATOM_FORMS}. Repeatable."
        ),
    ] = None,
    optimizer: Annotated[OptimizerChoice, typer.Option(help="Optimizer; it brings its own atoms.")] = "adamw",
    alignment: Annotated[
        int, typer.Option(metavar="ELEMENTS", help="Shards hold a multiple of so many elements.")
    ] = 8,
    max_buffers: Annotated[
        int, typer.Option(metavar="N", help="Buffers that parameters of one kind may be split into.")
    ] = 4,
    unit: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH[,PATH...]", help="A further unit beside the blocks. Repeatable."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the layouts as JSON and nothing else.")] = False,
) -> None:
    """Lay the parameters of each unit out so that no shard boundary cuts what must stay together.

    [dim]Examples[/dim]

    shardwright layout llama-3-8b --ranks 64 --optimizer adamw_8bit

    shardwright layout llama-3-8b --ranks 64 --atom '*=rows:16'

    shardwright layout qwen3-30b-a3b --ranks 64,32,16 --atom '*.experts.*=tile:128x128' --json
    """
    from api.cli.documents import load_model
    from planner.layout.plan import plan_layouts
    from planner.layout.planned import LayoutOptions
    from planner.schema import OptimizerGroup, OptimizerName, Workload

    described = load_model(model)
    plan = plan_layouts(
        described,
        Workload(
            micro_batch=1,
            sequence=1,
            global_batch=1,
            optimizer_groups=(OptimizerGroup(optimizer=OptimizerName(optimizer)),),
        ),
        (*_blocks(described), *(tuple(path.strip() for path in text.split(",")) for text in unit or ())),
        LayoutOptions(
            shard_degrees=tuple(_positive(text, "--ranks", most=_MOST_RANKS) for text in ranks.split(",")),
            alignment_elements=_positive(str(alignment), "--alignment"),
            max_buffers=_positive(str(max_buffers), "--max-buffers"),
        ),
        tuple(parse_atom(text) for text in atom or ()),
    )
    if json:
        import json as text

        typer.echo(text.dumps(_as_object(described.name, plan), indent=1))
        return
    from api.cli.render.console import show
    from api.cli.render.layout_page import layout_page

    show(layout_page(described.name, plan))


def parse_atom(text: str) -> "DeclaredAtom":
    """A pattern and its atom from `GLOB=ATOM`.

    Raises:
        InvalidDocument: it has another form.
        UnknownName: there is no such atom.
    """
    from planner.layout.atoms import DeclaredAtom
    from planner.schema import InvalidDocument

    pattern, separator, words = (part.strip() for part in text.rpartition("="))
    if not separator or not pattern:
        raise InvalidDocument(f"--atom {text!r} is not GLOB=ATOM; atoms are {_ATOM_FORMS}")
    return DeclaredAtom(pattern=pattern, atom=_atom(words, text))


def _atom(words: str, text: str) -> "Atom | RowRange":
    from planner.catalog import atom
    from planner.layout.atoms import RowRange
    from planner.schema import ElementAtom, FlatAtom, RowsAtom, TileAtom, WholeAtom

    kind, has_number, number = words.partition(":")
    match kind:
        case "element" if not has_number:
            return ElementAtom()
        case "whole" if not has_number:
            return WholeAtom()
        case "flat":
            return FlatAtom(num_elements=_positive(number, f"--atom {text!r}:"))
        case "rows" if "-" in number:
            least, most = (_positive(part, f"--atom {text!r}:") for part in number.split("-", 1))
            return RowRange(least_rows=min(least, most), most_rows=max(least, most))
        case "rows":
            return RowsAtom(num_rows=_positive(number, f"--atom {text!r}:"))
        case "tile":
            rows, _, columns = number.partition("x")
            return TileAtom(
                num_rows=_positive(rows, f"--atom {text!r}:"), num_columns=_positive(columns, f"--atom {text!r}:")
            )
        case _:
            return atom(words)


def _positive(text: str, where: str, *, most: int = 2**31) -> int:
    from planner.schema import InvalidDocument

    digits = text.strip()
    if not digits.isascii() or not digits.isdigit() or len(digits) > 12 or not 0 < int(digits) <= most:
        raise InvalidDocument(f"{where} {digits!r} is not a number from 1 to {most}")
    return int(digits)


def _blocks(model: "ModelDescription") -> tuple[tuple[str, ...], ...]:
    from planner.schema import CallRole

    paths = (call.path for call in model.calls if model.kinds[call.kind].role is CallRole.BLOCK)
    return tuple((path,) for path in dict.fromkeys(paths))


def _as_object(name: str, plan: "LayoutPlan") -> dict[str, object]:
    owners = plan.owners
    return {
        "model": name,
        "num_ranks": plan.num_ranks,
        "num_elements": plan.num_elements,
        "padding_elements": plan.padding_elements,
        "units": [
            {
                "modules": list(unit.modules),
                "padding_elements": unit.padding_elements,
                "given_order_padding_elements": unit.given_order_padding_elements,
                "fsdp2_padding_elements": unit.even_padding_elements,
                "buffers": [
                    {
                        "layout": buffer.layout.model_dump(mode="json"),
                        "num_elements": buffer.num_elements,
                        "padding_elements": buffer.padding_elements,
                        "lower_bound_padding_elements": buffer.lower_bound_padding_elements,
                        "status": buffer.solved.layout.status,
                        "atom_elements": {
                            tensor.name: tensor.atom_elements for tensor in buffer.solved.problem.tensors
                        },
                    }
                    for buffer in unit.buffers
                ],
            }
            for unit in plan.units
        ],
        "owners": None
        if owners is None
        else {
            "owner": dict(zip(owners.names, owners.solved.owners, strict=True)),
            "largest_flops": owners.solved.largest_work,
            "lower_bound_flops": owners.solved.work_lower_bound,
            "longest_first_flops": owners.longest_first_flops,
            "gathered_bytes": [load.gathered_bytes for load in owners.loads],
        },
        "notes": list(plan.notes),
    }
