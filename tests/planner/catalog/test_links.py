import pytest

from planner.catalog import link, link_names
from planner.schema import UnknownName


@pytest.mark.parametrize("name", link_names())
def test_sheets_are_sane(name):
    sheet = link(name)
    assert sheet.name == name
    assert 1e8 <= sheet.bytes_per_s < 2e12
    assert 1_000 <= sheet.latency_ns <= 100_000
    assert sheet.source.startswith("https://") or name == "loopback"


@pytest.mark.parametrize(
    ("name", "gigabits"),
    [
        *(
            ("ethernet-1", 1),
            ("ethernet-10", 10),
            ("ethernet-25", 25),
            ("ethernet-100", 100),
            ("ethernet-400", 400),
        ),
        *(("ib-hdr-200", 200), ("ib-ndr-400", 400), ("ib-xdr-800", 800)),
    ],
)
def test_networks_are_quoted_in_bits(name, gigabits):
    assert link(name).bytes_per_s * 8 == gigabits * 10**9


@pytest.mark.parametrize(("name", "both_ways"), [("nvlink3", 600), ("nvlink4", 900), ("nvlink5", 1_800)])
def test_nvlink_is_quoted_both_ways(name, both_ways):
    assert link(name).bytes_per_s * 2 == both_ways * 10**9


def test_pcie_pays_for_its_encoding():
    assert link("pcie4-x16").bytes_per_s == pytest.approx(16e9 * 16 * 128 / 130 / 8, rel=0.001)
    assert link("pcie5-x16").bytes_per_s == 2 * link("pcie4-x16").bytes_per_s


def test_unknown_link_lists_the_known_ones():
    with pytest.raises(UnknownName, match=r"unknown link 'nvlink'; known: .*infinity-fabric.*nvlink4"):
        link("nvlink")
