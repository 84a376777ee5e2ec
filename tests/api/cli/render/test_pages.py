import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from api.cli.render.console import THEME, show
from api.cli.render.difference_page import difference_page
from api.cli.render.plan_page import plan_page
from planner.schema import Alternative, Certificate, Limits, Objective, Plan, ShadowValue

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


def page_of(body, request):
    return " ".join(text_of(plan_page(Plan.of(body), request, saved_as=None, words=WORDS), width=140).split())


def test_what_was_minimised_and_its_limits_are_told(bodies, request_document):
    assert "least step time" in page_of(bodies(), request_document)
    limits = Limits(memory_bytes=70 * 2**30, step_time_ns=4_900_000_000)
    request = request_document.model_copy(update={"objective": Objective.PEAK_MEMORY, "limits": limits})
    assert "least peak memory within 70.0 GiB of memory and 4.900 s per step" in page_of(bodies(), request)


def test_a_proof_about_memory_is_in_bytes_and_alternatives_are_compared_by_them(bodies, request_document):
    peak = bodies().predictions.peak.reserved_bytes
    certificate = Certificate(
        objective="peak_memory_bytes", value=peak, lower_bound=60 * 2**30, gap=0.05, status="bounded"
    )
    body = bodies(certificate=certificate)
    others = (
        Alternative(change="other mesh", step_time_ns=4_000_000_000, reserved_bytes=peak * 2 // 3, fits=False),
        Alternative(change="all kept", step_time_ns=4_812_345_678, reserved_bytes=peak * 9 // 10, fits=True),
    )
    body = body.model_copy(update={"reasons": body.reasons.model_copy(update={"why_not": others})})
    text = page_of(body, request_document)
    assert "of the best possible (bound 60.0 GiB)" in text
    assert "other mesh 4.000 s -16.9 % 42.3 -33.3 % too slow" in text
    assert "all kept 4.812 s same 57.1 -10.0 % fits" in text
    assert "leaner ones are within the accepted gap" in text
    assert "faster ones" not in text


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [
        (48_123_457, 48_123_457, "2.00 GiB more memory would save 1.0 % of the step with this mesh"),
        (48_123_457, 96_246_913, "2.00 GiB more memory would save at least 1.0 %, at most 2.0 % of the step"),
        (0, 48_123_457, "2.00 GiB more memory would save at most 1.0 % of the step"),
        (0, 0, "more memory would save nothing with this mesh and grouping"),
    ],
)
def test_what_more_memory_is_worth(bodies, request_document, least, most, said):
    value = ShadowValue(limit="memory_bytes", more=2 * 2**30, saves_at_least=least, saves_at_most=most)
    body = bodies()
    body = body.model_copy(update={"reasons": body.reasons.model_copy(update={"shadow": (value,)})})
    assert said in page_of(body, request_document)


def test_what_more_time_is_worth(bodies, request_document):
    certificate = Certificate(objective="peak_memory_bytes", value=1000, lower_bound=1000, gap=0, status="optimal")
    value = ShadowValue(limit="step_time_ns", more=8_000_000, saves_at_least=50, saves_at_most=50)
    body = bodies(certificate=certificate)
    body = body.model_copy(update={"reasons": body.reasons.model_copy(update={"shadow": (value,)})})
    assert "8.000 ms more per step would save 5.0 % of the peak memory" in page_of(body, request_document)


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
