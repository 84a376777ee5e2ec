"""Statements that differ in the block alone become loops, which run the same calls in the same order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.script.loops import Path, Statement, in_loops


def call(path: str, word: str = "f") -> Statement:
    return (f"{word}(", Path(path), ")")


def run(lines: list[str]) -> list[tuple[str, str]]:
    """What the lines call."""
    done: list[tuple[str, str]] = []
    names = {word: (lambda path, word=word: done.append((word, path))) for word in "fgh"}
    exec("\n".join(lines), names)
    return done


@pytest.mark.parametrize(
    ("paths", "lines"),
    [
        (["layers.0", "layers.1", "layers.2"], ["for i in range(3):", '    f(f"layers.{i}")']),
        (["a.4.x", "a.6.x", "a.8.x"], ["for i in range(4, 10, 2):", '    f(f"a.{i}.x")']),
        (["layers.2", "layers.1", "layers.0"], ["for i in range(2, -1, -1):", '    f(f"layers.{i}")']),
        (["embed", "layers.0", "norm"], ['f("embed")', 'f("layers.0")', 'f("norm")']),
        ([""], ['f("")']),
        (["layers.0", "layers.0"], ['f("layers.0")', 'f("layers.0")']),
        (['a"b.0', 'a"b.1'], ['f("a\\"b.0")', 'f("a\\"b.1")']),
        (["{x}.0", "{x}.1"], ['f("{x}.0")', 'f("{x}.1")']),
    ],
)
def test_what_repeats_is_a_loop(paths: list[str], lines: list[str]) -> None:
    assert list(in_loops([call(path) for path in paths])) == lines


def test_blocks_in_halves_and_paths_ahead() -> None:
    statements = [
        statement
        for block in range(4)
        for statement in (
            (*call(f"layers.{block}.attn"), "; ", *call(f"layers.{block + 1}.attn", "g")),
            call(f"layers.{block}.mlp"),
        )
    ]
    assert list(in_loops(statements)) == [
        "for i in range(4):",
        '    f(f"layers.{i}.attn"); g(f"layers.{i + 1}.attn")',
        '    f(f"layers.{i}.mlp")',
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from("fgh"), st.sampled_from(["a", "b.c", "x.1y"]), st.integers(0, 3)), max_size=24
    )
)
def test_loops_run_the_statements_in_their_order(calls: list[tuple[str, str, int]]) -> None:
    wished = [(word, f"{path}.{number}") for word, path, number in calls]
    assert run(list(in_loops([call(path, word) for word, path in wished]))) == wished
