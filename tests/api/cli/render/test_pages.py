import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from api.cli.render.console import THEME, show
from api.cli.render.difference_page import difference_page
from api.cli.render.plan_page import plan_page
from planner.schema import Alternative, Certificate, Plan

WIDTHS = (60, 100, 160)
WORDS = "llama-3-8b h100-8 --seq 4096 --global-batch 64"


def text_of(page, *, width, encoding="utf-8"):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    show(page, Console(file=file, width=width, theme=THEME, highlight=False))
    file.flush()
    return raw.getvalue().decode(encoding)


def widest(text):
    """Cells of the longest line; commands are never broken, so that they can be copied."""
    return max(cell_len(line) for line in text.splitlines() if ": shardwright " not in line)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_plan_fits_the_width_and_says_what_matters(feasible_plan, request_document, width):
    text = text_of(plan_page(feasible_plan, request_document, saved_as=Path("plan.json"), words=WORDS), width=width)
    assert widest(text) <= width
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    assert f"Check it anywhere: shardwright check plan.json {WORDS}" in text.splitlines()
    flat = " ".join(text.split())
    for said in (
        "4.812 s per step",
        "54.5 k tokens/s",
        "42.3 % MFU",
        "63.4 of 75.7 GiB at the peak",
        "within 0.08 % of the best possible (bound 4.808 s)",
        "checked independently",
        "model.layers.0,3..30",
        "budget 75.7",
        "activations in backward of model.layers.31",
        "2 measured all_gather of 8 ranks; reduce_scatter of 8 ranks",
        "2 assumed matmul rate; memory bandwidth",
    ):
        assert said in flat, said


def test_a_plan_in_plain_ascii(feasible_plan, request_document):
    page = plan_page(feasible_plan, request_document, saved_as=None, words=WORDS)
    text = text_of(page, width=100, encoding="ascii")
    assert "#..#..#" in text
    assert "Keep it: shardwright plan" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_an_infeasible_plan_says_why_and_what_would_help(infeasible_plan, request_document, width):
    text = text_of(plan_page(infeasible_plan, request_document, saved_as=None, words=WORDS), width=width)
    assert widest(text) <= width
    flat = " ".join(text.split())
    for said in (
        "Nothing fits: 16.7 GiB too much",
        "what binds optimizer",
        "needed 92.3 GiB",
        "budget 75.6 GiB",
        "devices of 98.1 GiB, or 16 ranks of the same kind",
        "- keep the optimizer state in bfloat16",
    ):
        assert said in flat, said


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("optimal", "proven optimal"),
        ("bounded", "within 25.0 % of"),
        ("provisional", "provisional: at most 25.0 %"),
    ],
)
def test_the_headline_says_how_good_the_plan_is(bodies, request_document, status, said):
    certificate = Certificate(value=4_000, lower_bound=3_000, gap=0.25, status=status)
    page = plan_page(Plan.of(bodies(certificate=certificate)), request_document, saved_as=None, words=WORDS)
    flat = " ".join(text_of(page, width=100).split())
    assert said in flat
    assert "not checked independently" in flat


def test_an_alternative_without_numbers_is_a_dash(bodies, request_document):
    body = bodies()
    reasons = body.reasons.model_copy(update={"alternatives": (Alternative(change="16-way shard", fits=False),)})
    plan = Plan.of(body.model_copy(update={"reasons": reasons}))
    text = text_of(plan_page(plan, request_document, saved_as=None, words=WORDS), width=100)
    assert "16-way shard" in text
    assert "does not fit" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_a_difference_is_told_in_words_and_numbers(bodies, decide, predict_numbers, width):
    after = bodies(
        decisions=decide(checkpointed=tuple(range(32)), kept=(30, 31)),
        predictions=predict_numbers(step_time_ns=5_000_000_000),
    )
    text = text_of(difference_page(bodies(), after), width=width)
    assert widest(text) <= width
    flat = " ".join(text.split())
    assert "step time 4.812 s 5.000 s +3.9 %" in flat
    assert "model.layers.30-31: reshard after forward yes -> no" in flat
    assert "model.layers.[21 of 1-31]: activations keep -> checkpoint" in flat


def test_equal_plans_are_said_to_be_equal(bodies):
    assert "The two plans are the same." in text_of(difference_page(bodies(), bodies()), width=100)
