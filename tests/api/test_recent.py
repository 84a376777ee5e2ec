"""What is remembered of bodies."""

from api.service.recent import RecentBodies


def test_a_tenant_finds_its_own_bodies() -> None:
    recent = RecentBodies()
    recent.put("blue", b"{}", "sha256:1")
    assert recent.get("blue", b"{}") == "sha256:1"
    assert recent.get("red", b"{}") is None
    assert recent.get("blue", b"{ }") is None


def test_the_one_that_was_not_asked_for_longest_is_forgotten() -> None:
    recent = RecentBodies(most=2)
    for number in range(2):
        recent.put("blue", str(number).encode(), f"sha256:{number}")
    assert recent.get("blue", b"0") == "sha256:0"
    recent.put("blue", b"2", "sha256:2")
    assert recent.get("blue", b"1") is None
    assert (recent.get("blue", b"0"), recent.get("blue", b"2")) == ("sha256:0", "sha256:2")
