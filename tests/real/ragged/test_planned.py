"""Layouts and owners that the planner makes, carried out on ranks."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from torch import nn

from planner.layout.plan import plan_layouts
from planner.layout.planned import LayoutOptions
from planner.plan import make_plan
from planner.schema import (
    ClientFeature,
    Decisions,
    FixedChoice,
    ModelDescription,
    OptimizerGroup,
    OptimizerName,
    PlanRequest,
    Precision,
    Workload,
)
from runtime_client.apply.units import resolve_units
from runtime_client.describe import TrainingExample, describe, token_inputs
from runtime_client.features import CLIENT_FEATURES
from tests.planner.factories import tiny_cluster
from tests.real.launch import ROOT, run_ranks
from tests.real.llama import seeded_llama
from tests.real.ragged.optimize import UNITS, build
from tests.runtime_client.plans import decisions

pytestmark = [pytest.mark.real, pytest.mark.slow]


def described(build: Callable[[], nn.Module] = build) -> ModelDescription:
    def example() -> TrainingExample:
        return TrainingExample(model=build(), inputs=token_inputs)

    return describe(example, name="llama", micro_batch=2, sequence=8, param_dtype=None)


def planned(num_ranks: int) -> Decisions:
    model = described()
    workload = Workload(
        micro_batch=2,
        sequence=8,
        global_batch=2 * num_ranks,
        optimizer_groups=(OptimizerGroup(optimizer=OptimizerName.ADAMW_8BIT),),
    )
    blocks = [unit.modules for unit in UNITS if unit.modules != ("",)]
    found = plan_layouts(model, workload, blocks, LayoutOptions(shard_degrees=(num_ranks,)))
    even = decisions(UNITS, shard=num_ranks)
    units = []
    for unit in resolve_units(build(), even):
        own = {name for name, _ in unit.parameters}
        names = tuple(x.name for x in found.layouts if {entry.parameter for entry in x.entries} <= own)
        units.append(unit.plan.model_copy(update={"layouts": names}))
    return even.model_copy(update={"units": tuple(units), "layouts": found.layouts})


def test_planned_for_8_bit_adam(tmp_path: Path) -> None:
    made = tmp_path / "decisions.json"
    made.write_text(planned(3).model_dump_json())
    script = ROOT / "tests/real/ragged/optimize.py"
    output = run_ranks(script, 3, (f"adam8bit={made}",), timeout_s=120, log_dir=tmp_path / "logs")[0]
    result = json.loads(output.stdout)
    assert result["same gradients"] == []
    assert result["states"][0] == []
    assert result["losses"][-1] < 0.7 * result["losses"][0]


def test_whole_search_for_muon(tmp_path: Path) -> None:
    """Three ranks pad 64 rows to 66, so blocks become ragged; their matrices are cut, and ranks own them."""
    request = PlanRequest(
        model=described(),
        cluster=tiny_cluster(3),
        workload=Workload(
            micro_batch=2,
            sequence=8,
            global_batch=6,
            precision=Precision(param_dtype=None, reduce_dtype=None),
            optimizer_groups=(
                OptimizerGroup(parameters="*norm*"),
                OptimizerGroup(parameters="layers.*", optimizer=OptimizerName.MUON),
                OptimizerGroup(),
            ),
        ),
        fixed=(FixedChoice(knob="mesh.shard", value=3),),
        client_features=CLIENT_FEATURES,
    )
    made = make_plan(request).body.decisions
    assert made is not None
    assert {entry.rank for entry in made.owners} == {0, 1, 2}
    assert any(unit.layouts for unit in made.units if unit.modules[0].startswith("layers"))
    path = tmp_path / "decisions.json"
    path.write_text(made.model_dump_json())
    script = ROOT / "tests/real/ragged/optimize.py"
    output = run_ranks(script, 3, (f"muon={path}",), timeout_s=120, log_dir=tmp_path / "logs")[0]
    result = json.loads(output.stdout)
    assert result["same gradients"] == []
    assert result["states"][0] == []
    assert result["losses"][-1] < 0.7 * result["losses"][0]


def test_whole_search_with_gathers_in_place(tmp_path: Path) -> None:
    """What the search decides to gather in place trains as without, bit for bit."""
    request = PlanRequest(
        model=described(partial(seeded_llama, num_blocks=2)),
        cluster=tiny_cluster(3),
        workload=Workload(
            micro_batch=2,
            sequence=8,
            global_batch=6,
            precision=Precision(param_dtype=None, reduce_dtype=None),
        ),
        fixed=(FixedChoice(knob="mesh.shard", value=3), FixedChoice(knob="blocks_per_unit", value=1)),
        client_features=CLIENT_FEATURES,
    )
    body = make_plan(request).body
    made = body.decisions
    assert made is not None
    in_place = sorted(unit.layouts[0] for unit in made.units if unit.alias_gathers)
    assert in_place
    assert ClientFeature.ALIAS_GATHERS in body.requires.client_features
    path = tmp_path / "decisions.json"
    path.write_text(made.model_dump_json())
    script = ROOT / "tests/real/ragged/train.py"
    output = run_ranks(script, 3, (f"float32={path}",), timeout_s=120, log_dir=tmp_path / "logs")[0]
    result = json.loads(output.stdout)
    assert result["aliased"] == in_place
    for what in ("gradients", "parameters", "moments"):
        assert result[what] == [], what
    assert result["loss difference"] == 0
    assert result["losses"][-1] < result["losses"][0]
