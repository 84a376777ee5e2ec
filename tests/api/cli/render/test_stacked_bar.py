import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from api.cli.render.console import THEME
from api.cli.render.stacked_bar import Segment, StackedBar, cells_of


@given(st.lists(st.integers(0, 2**50), max_size=12), st.integers(1, 200))
def test_cells_add_up_to_the_share_of_the_whole(values, width):
    scale = max(1, sum(values))
    cells = cells_of(values, scale, width)
    assert sum(cells) == (width if any(values) else 0)
    assert all(abs(number - value * width / scale) <= 1 for number, value in zip(cells, values, strict=True))


@given(st.lists(st.integers(0, 1000), max_size=6), st.integers(1, 100_000), st.integers(1, 120))
def test_cells_never_leave_the_bar_when_the_scale_covers_the_values(values, extra, width):
    assert sum(cells_of(values, sum(values) + extra, width)) <= width


def lines_of(bar, *, width, color):
    file = io.StringIO()
    console = Console(
        file=file, width=width, theme=THEME, force_terminal=color, color_system="truecolor" if color else None
    )
    console.print(bar)
    return file.getvalue().splitlines()


def make_bar(limit):
    segments = [
        Segment(name="parameters", value=30, label="30", style="blue", letter="P"),
        Segment(name="activations", value=50, label="50", style="yellow", letter="X"),
        Segment(name="nothing", value=0, label="0", style="red", letter="N"),
    ]
    return StackedBar(segments=segments, scale=100, limit=limit, limit_label="budget")


def test_without_colours_letters_tell_segments_apart():
    bar, mark, legend = lines_of(make_bar(limit=100), width=54, color=False)
    assert bar.count("P") == 15
    assert bar.count("X") == 25
    assert bar.count(".") == 10
    assert mark.rstrip().endswith("budget ^")
    assert "P parameters   30" in legend
    assert "nothing" not in legend


def test_the_mark_is_where_the_limit_is():
    bar, mark, _ = lines_of(make_bar(limit=50), width=54, color=False)
    assert mark.index("^") == 2 + 25
    assert bar[2 + 25] == "\u2502"


def test_with_colours_blocks_carry_them():
    bar = lines_of(make_bar(limit=100), width=54, color=True)[0]
    assert bar.count("\u2588") == 40
    assert "\x1b[34m" in bar
