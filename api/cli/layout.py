"""`shardwright layout`."""

from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.options import ATOM_FORMS, QUANTIZERS, OptimizerChoice

if TYPE_CHECKING:
    from planner.layout.plan import LayoutPlan
    from planner.schema import ModelDescription

_MOST_RANKS = 100_000


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
            metavar="GLOB=ATOM",
            help=f"What stays together in parameters, by full name: {ATOM_FORMS}; rows:16-128 is a range. "
            "Repeatable.",
        ),
    ] = None,
    quantizer: Annotated[
        list[str] | None,
        typer.Option(metavar="[GLOB=]NAME", help=f"Quantizer; it brings its own atoms: {QUANTIZERS}. Repeatable."),
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

    shardwright layout llama-3-8b --ranks 64 --quantizer fp8_blockwise

    shardwright layout qwen3-30b-a3b --ranks 64,32,16 --atom '*.experts.*=tile:128x128' --json
    """
    from api.cli.atoms import parse_atom, positive
    from api.cli.documents import load_model
    from api.cli.requests import parse_quantizer
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
            quantizer_groups=tuple(parse_quantizer(text) for text in quantizer or ()),
        ),
        (*_blocks(described), *(tuple(path.strip() for path in text.split(",")) for text in unit or ())),
        LayoutOptions(
            shard_degrees=tuple(positive(text, "--ranks", most=_MOST_RANKS) for text in ranks.split(",")),
            alignment_elements=positive(str(alignment), "--alignment"),
            max_buffers=positive(str(max_buffers), "--max-buffers"),
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
