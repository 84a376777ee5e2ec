"""Padding of whole layers against the published heuristic, FSDP2 and Megatron-FSDP, and planning times.

Shapes and published figures are those of veScale-FSDP (MLSys 2026, arXiv 2602.22437): GPT-OSS-120B and DeepSeek-V3
layers, atoms of 1, 16 and 128 rows, shards aligned to 8 elements. The published heuristic is written again here
from its description: three orders, and for each growing common multiple of the atoms a binary search over its
multiples. Beside one buffer, what a joint choice of up to four buffers pads.

Written to `docs/measurements/layout-padding.json`. Run from the repository:

    python -m benchmarks.layout_padding [--megatron FOLDER]

FOLDER is `megatron/core/distributed/fsdp/src/megatron_fsdp/experimental` of a clone of Megatron-LM; its
`GlobalLayout.build` then runs on the same shapes (it needs torch). Without it that column stays empty.
Seconds are CPU time.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import lcm, prod
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from benchmarks.record import provenance
from solver.layout.flexible import FlexibleTensor, JointProblem
from solver.layout.grid import Grid
from solver.layout.joint import solve_jointly
from solver.layout.problem import LayoutProblem, Tensor, check, padding_elements
from solver.layout.search import solve

OUTPUT = Path(__file__).parents[1] / "docs" / "measurements" / "layout-padding.json"
ALIGNMENT = 8
Shape = tuple[int, ...]

GPT_OSS_ATTENTION: tuple[Shape, ...] = (
    *((2880,), (4096, 2880), (4096,), (512, 2880), (512,), (512, 2880), (512,)),
    *((2880, 4096), (2880,), (64,), (2880,), (128, 2880), (128,)),
)
"""With the router."""
LAYERS: dict[str, tuple[Shape, ...]] = {
    "GPT-OSS-120B": (*GPT_OSS_ATTENTION, (128, 5760, 2880), (128, 5760), (128, 2880, 2880), (128, 2880)),
    "DeepSeek-V3": (
        *((7168,), (1536, 7168), (1536,), (24576, 1536), (576, 7168), (512,), (32768, 512), (7168, 16384)),
        *((7168,), (256, 7168), (256,)),
        *((2048, 7168), (2048, 7168), (7168, 2048)) * 257,
    ),
}
PUBLISHED_PERCENT: dict[tuple[str, int], tuple[str, str, str]] = {
    ("GPT-OSS-120B", 128): (".01", ".05", "1.3"),
    ("GPT-OSS-120B", 256): (".02", ".23", "2.8"),
    ("GPT-OSS-120B", 512): (".14", ".60", "5.7"),
    ("DeepSeek-V3", 256): (".02", ".31", "2.6"),
    ("DeepSeek-V3", 512): (".16", ".31", "2.6"),
}
"""With atoms of 1, 16 and 128 rows."""
ROWS = (1, 16, 128)


def problem_of(shapes: Sequence[Shape], rows: int, num_ranks: int) -> LayoutProblem:
    """One buffer; vectors may be cut anywhere."""
    return LayoutProblem(
        tensors=tuple(
            Tensor(name=str(number), num_elements=prod(shape), atom_elements=atom_of(shape, rows))
            for number, shape in enumerate(shapes)
        ),
        num_ranks=num_ranks,
        alignment_elements=ALIGNMENT,
    )


def atom_of(shape: Shape, rows: int) -> int:
    return 1 if len(shape) == 1 else min(rows, prod(shape[:-1])) * shape[-1]


def published(problem: LayoutProblem) -> int:
    """S of the published heuristic."""
    sizes = [tensor.size for tensor in problem.tensors]
    orders = (sizes, sorted(sizes, key=lambda size: size[1]), sorted(sizes, reverse=True))
    best = 0
    for order in orders:
        for unit in dict.fromkeys(accumulate((atom for _, atom in order), lcm, initial=problem.alignment_elements)):
            found = _least_multiple(problem, order, unit)
            best = min(best or found, found)
    return best


def _least_multiple(problem: LayoutProblem, order: Sequence[tuple[int, int]], unit: int) -> int:
    low = max(1, -(-problem.num_elements // (problem.num_ranks * unit)))
    atoms = [atom for _, atom in order]
    high = low
    while Grid(problem, high * unit, atoms).starts(order) is None:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        if Grid(problem, middle * unit, atoms).starts(order) is None:
            low = middle + 1
        else:
            high = middle
    return high * unit


def dim_0_elements(shapes: Sequence[Shape], num_ranks: int) -> int:
    """Elements that FSDP2 gathers: chunks of ceil(d_0 / m) rows."""
    return sum(-(-shape[0] // num_ranks) * num_ranks * prod(shape[1:]) for shape in shapes)


def megatron_builder(folder: Path) -> Callable[[Sequence[Shape], int], int]:
    """Size of Megatron-FSDP's buffer; the one name that its file imports and does not need here is made up."""
    package = ModuleType("megatron_layout")
    package.__path__ = [str(folder)]
    placement = ModuleType("megatron_layout.placement")
    placement.Flat = type("Flat", (), {})  # type: ignore[attr-defined]
    sys.modules.update({"megatron_layout": package, "megatron_layout.placement": placement})
    spec = importlib.util.spec_from_file_location("megatron_layout.layout", folder / "layout.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return lambda shapes, num_ranks: int(module.GlobalLayout.build(shapes, num_ranks).size)


def rows_of_table(megatron: Callable[[Sequence[Shape], int], int] | None) -> Iterator[dict[str, Any]]:
    """One line for each layer, number of ranks and atom."""
    for (layer, num_ranks), figures in PUBLISHED_PERCENT.items():
        shapes = LAYERS[layer]
        total = sum(map(prod, shapes))
        for rows, figure in zip(ROWS, figures, strict=True):
            problem = problem_of(shapes, rows, num_ranks)
            started = time.process_time()
            layout = solve(problem)
            seconds = time.process_time() - started
            assert not check(problem, layout)
            yield {
                "layer": layer,
                "ranks": num_ranks,
                "rows": rows,
                "percent": _percent(layout.shard_elements * num_ranks, total),
                "bound_percent": _percent(layout.lower_bound_elements * num_ranks, total),
                "status": layout.status,
                "published_percent": float(figure),
                "is_above_published": round(
                    _percent(layout.shard_elements * num_ranks, total), len(figure.partition(".")[2])
                )
                > float(figure),
                "heuristic_percent": _percent(published(problem) * num_ranks, total),
                "fsdp2_dim_0_percent": _percent(dim_0_elements(shapes, num_ranks), total),
                "megatron_percent": None if megatron is None else _percent(megatron(shapes, num_ranks), total),
                "joint_percent": _joint_percent(problem),
                "seconds": round(seconds, 4),
            }


def _joint_percent(problem: LayoutProblem) -> float:
    """Padding where the same tensors may lie in up to four buffers."""
    found = solve_jointly(
        JointProblem(
            tensors=tuple(
                FlexibleTensor(name=t.name, num_elements=t.num_elements, step_elements=t.atom_elements)
                for t in problem.tensors
            ),
            rank_options=(problem.num_ranks,),
            alignment_elements=problem.alignment_elements,
        )
    )
    return _percent(found.num_elements + found.padding_elements, found.num_elements)


def joint_choices() -> Iterator[dict[str, Any]]:
    """GPT-OSS attention on 64 ranks: one buffer against the joint choice."""
    for least, most in ((1, 1), (16, 16), (16, 128)):
        one = problem_of(GPT_OSS_ATTENTION, least, 64)
        started = time.process_time()
        found = solve_jointly(
            JointProblem(
                tensors=tuple(
                    FlexibleTensor(
                        name=str(number),
                        num_elements=prod(shape),
                        step_elements=1 if len(shape) == 1 else shape[-1],
                        least_steps=1 if len(shape) == 1 else least,
                        most_steps=1 if len(shape) == 1 else most,
                    )
                    for number, shape in enumerate(GPT_OSS_ATTENTION)
                ),
                rank_options=(64,),
                alignment_elements=ALIGNMENT,
            )
        )
        seconds = time.process_time() - started
        yield {
            "rows": [least, most],
            "one_buffer_percent": 100 * padding_elements(one, solve(one).shard_elements) / one.num_elements,
            "joint_percent": 100 * found.padding_elements / found.num_elements,
            "ranks": found.num_ranks,
            "buffers": [
                {
                    "tensors": [list(GPT_OSS_ATTENTION[int(t.name)]) for t in buffer.problem.tensors],
                    "shard_elements": buffer.layout.shard_elements,
                    "padding_elements": buffer.padding_elements,
                    "status": buffer.layout.status,
                }
                for buffer in found.buffers
            ],
            "seconds": round(seconds, 3),
        }


def large_problems() -> Iterator[tuple[str, LayoutProblem]]:
    """10,000 tensors on 4,096 ranks: experts, matrices of a few sizes, and hardly two alike."""
    experts = ((2048 * 7168, 16 * 7168), (2048 * 7168, 16 * 7168), (7168 * 2048, 16 * 2048)) * 3330
    random = Random(0)
    widths = (512, 768, 1024, 1536, 2880, 4096)
    few = [
        (random.choice((64, 128, 256, 512, 1000, 2048)) * width, random.choice((1, 16)) * width)
        for width in random.choices(widths, k=10_000)
    ]
    many = [
        (random.randint(16, 4096) * width, random.choice((1, 16)) * width)
        for width in random.choices(widths, k=10_000)
    ]
    for name, sizes in (("experts", (*experts, *((7168, 1),) * 10)), ("few sizes", few), ("many sizes", many)):
        tensors = (
            Tensor(name=str(number), num_elements=elements, atom_elements=atom)
            for number, (elements, atom) in enumerate(sizes)
        )
        yield name, LayoutProblem(tensors=tuple(tensors), num_ranks=4096, alignment_elements=ALIGNMENT)


def times() -> Iterator[dict[str, Any]]:
    """CPU time of one search on one core; on 1,024 ranks it uses up its effort."""
    sizes = ((1, 512), (16, 512), (128, 512), (1, 1024))
    named = [(f"DeepSeek-V3, {rows} rows", problem_of(LAYERS["DeepSeek-V3"], rows, m)) for rows, m in sizes]
    for name, problem in (*named, *large_problems()):
        started = time.process_time()
        layout = solve(problem)
        seconds = time.process_time() - started
        assert not check(problem, layout)
        total = problem.num_elements
        yield {
            "problem": name,
            "tensors": len(problem.tensors),
            "ranks": problem.num_ranks,
            "seconds": round(seconds, 3),
            "percent": _percent(layout.shard_elements * problem.num_ranks, total),
            "bound_percent": _percent(layout.lower_bound_elements * problem.num_ranks, total),
            "status": layout.status,
        }


def _percent(padded: int, total: int) -> float:
    return round(100 * (padded / total - 1), 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", type=Path, default=None)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    table = list(rows_of_table(megatron_builder(arguments.megatron) if arguments.megatron else None))
    print(
        "| layer, ranks | rows | padding % | bound | published | heuristic | FSDP2 dim 0 | Megatron | joint | s |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for row in table:
        megatron = "-" if row["megatron_percent"] is None else f"{row['megatron_percent']:.1f}"
        print(
            f"| {row['layer']}, {row['ranks']} | {row['rows']} | {row['percent']:.3f} | {row['bound_percent']:.3f} "
            f"| {row['published_percent']:g} | {row['heuristic_percent']:.3f} | {row['fsdp2_dim_0_percent']:.0f} "
            f"| {megatron} | {row['joint_percent']:.3f} | {row['seconds']:.3f} |"
        )
    joint, timed = list(joint_choices()), list(times())
    for row in joint:
        print(
            f"GPT-OSS attention, {row['rows']} rows: {row['one_buffer_percent']:.1f} % in one buffer, "
            f"{row['joint_percent']:.3f} % in {len(row['buffers'])} ({row['seconds']} s)"
        )
    for row in timed:
        print(
            f"{row['tensors']:,} tensors on {row['ranks']:,} ranks ({row['problem']}): {row['seconds']} s, "
            f"{row['percent']} %, bound {row['bound_percent']} %"
        )
    arguments.output.write_text(
        json.dumps(provenance() | {"padding": table, "joint": joint, "times": timed}, indent=1) + "\n"
    )
    return int(any(row["is_above_published"] or row["percent"] > row["heuristic_percent"] for row in table))


if __name__ == "__main__":
    sys.exit(main())
