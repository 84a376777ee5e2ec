"""Bars of the network bench, on lines made by hand."""

from typing import Any

from benchmarks.network.summary import best_by_hand, default_of, failures, tables


def arm(name: str, measured: float, predicted: float, **further: Any) -> dict[str, Any]:
    return {
        "name": name,
        "median_ms": measured,
        "step_ms": [measured, 3 * measured, 2 * measured],
        "predicted_ms": predicted,
        "peak_bytes": 1000,
        "predicted_peak_bytes": 1000,
        "losses": [2.0, 1.5],
        "waited": [0.01],
        **further,
    }


def line(*arms: dict[str, Any], ranks: int = 2) -> dict[str, Any]:
    stock = arm("stock", 300, 300)
    return {"name": "llama, 500 Mbit/s", "ranks": ranks, "arms": [*arms, stock]}


GOOD = (arm("default", 200, 199), arm("prefetch 1", 160, 161), arm("plan", 150, 152))


def test_what_keeps_every_bar_has_no_failures() -> None:
    found = line(*GOOD)
    assert failures([found]) == []
    assert default_of(found)["name"] == "default"
    assert best_by_hand(found)["name"] == "prefetch 1"
    first, _ = tables([found]).split("\n\n")
    assert "| llama, 500 Mbit/s | 200 | 160 | 150 | 0.750 | 0.938 | 2.00 |" in first


def test_each_bar_is_named_when_it_is_missed() -> None:
    slow = line(GOOD[0], GOOD[1], arm("plan", 170, 171))
    assert failures([slow]) == [
        "llama, 500 Mbit/s: the plan takes 1.062 times as long as 'prefetch 1'",
    ]
    off = line(GOOD[0], arm("prefetch 1", 160, 190), GOOD[2])
    assert "predicted +18.8% off" in failures([off])[0]
    fat = line(GOOD[0], arm("prefetch 1", 160, 160, predicted_peak_bytes=970), GOOD[2])
    assert "the peak of 'prefetch 1' is predicted -3.0% off" in failures([fat])[0]
    other = line(GOOD[0], GOOD[1], arm("plan", 150, 150, losses=[2.0, 1.6]))
    assert "the losses of 'plan' differ" in failures([other])[0]


def test_steps_of_stock_collectives_are_shown_without_a_bar() -> None:
    found = line(*GOOD)
    found["arms"][-1] = arm("stock", 300, 240)
    assert failures([found]) == []
    _, second = tables([found]).split("\n\n")
    assert "| llama, 500 Mbit/s | 3 | 0.6% | +1.3% | -20.0% | +0.00% | 1% |" in second
    fat = line(*GOOD)
    fat["arms"][-1] = arm("stock", 300, 300, predicted_peak_bytes=1030)
    assert "the peak of 'stock'" in failures([fat])[0]


def test_more_ranks_than_cores_are_only_reported() -> None:
    assert failures([line(GOOD[0], arm("plan", 400, 100), ranks=4)]) == []
