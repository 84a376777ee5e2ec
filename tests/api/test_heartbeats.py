from api.heartbeats import Silence


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def watch(timeout_s: float = 10.0) -> tuple[Silence, Clock]:
    clock = Clock()
    return Silence(timeout_s, clock), clock


def test_a_heartbeat_that_does_not_change_belongs_to_a_dead_process() -> None:
    silence, clock = watch()
    for beat in range(1, 5):
        assert silence.dead({"alive": beat, "dead": 7}) == ([] if beat < 4 else ["dead"])
        clock.now += 4.0


def test_clocks_of_others_do_not_matter() -> None:
    silence, clock = watch()
    for beat in (-500, 9_000_000, 3):
        assert silence.dead({"odd": beat}) == []
        clock.now += 4.0


def test_who_stopped_in_good_order_is_dead_at_once() -> None:
    silence, _ = watch()
    assert silence.dead({"retired": 0, "new": 5}) == ["retired"]


def test_after_an_outage_everybody_has_the_whole_time_again() -> None:
    silence, clock = watch()
    assert silence.dead({"other": 5}) == []
    clock.now += 100.0
    assert silence.dead({"other": 5}) == []
    for _ in range(2):
        clock.now += 4.9
        assert silence.dead({"other": 5}) == []
    clock.now += 4.9
    assert silence.dead({"other": 5}) == ["other"]


def test_without_patience_all_others_are_dead() -> None:
    silence, _ = watch(0.0)
    assert silence.dead({"a": 3, "b": 0}) == ["a", "b"]
