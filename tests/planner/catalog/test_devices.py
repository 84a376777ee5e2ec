import re

import pytest

from planner.catalog import device, device_names
from planner.schema import DType, UnknownName

ACCELERATORS = [name for name in device_names() if name != "cpu"]
BRIEF = ["A10", "V100-32G", "A100-40G", "A100-80G", "L40S", "RTX-4090", "H100-80G", "H200", "B200", "MI300X", "cpu"]


def test_the_catalog_holds_what_the_documentation_promises():
    assert list(device_names()) == BRIEF


@pytest.mark.parametrize("name", ACCELERATORS)
def test_accelerator_sheets_are_sane(name):
    sheet = device(name)
    assert sheet.name == name
    assert 20e9 <= sheet.memory_bytes <= 200e9
    assert 0.5e12 <= sheet.memory_bytes_per_s <= 10e12
    assert sheet.flops_per_s[DType.FLOAT16] > sheet.flops_per_s[DType.FLOAT32]
    # Compute-bound matmuls need hundreds of FLOPs per byte; a sheet in GFLOP/s or GB would fall out of this range.
    assert 100 <= sheet.flops_per_s[DType.FLOAT16] / sheet.memory_bytes_per_s <= 500
    assert sheet.host_link_bytes_per_s is not None
    assert sheet.host_link_bytes_per_s < sheet.memory_bytes_per_s
    assert 0 < sheet.context_bytes < 2**30


@pytest.mark.parametrize("name", ACCELERATORS)
def test_accelerator_sheets_name_their_vendor(name):
    assert re.match(r"https://(www\.nvidia\.com|images\.nvidia\.com|www\.amd\.com)/\S+", device(name).source)


@pytest.mark.parametrize("name", ["H100-80G", "H200", "B200", "MI300X", "L40S", "RTX-4090"])
def test_float8_doubles_the_rate_and_is_dense(name):
    rates = device(name).flops_per_s
    assert rates[DType.FLOAT8_E4M3FN] == rates[DType.FLOAT8_E5M2]
    assert 1.9 <= rates[DType.FLOAT8_E4M3FN] / rates[DType.BFLOAT16] <= 2.1


def test_rates_that_a_device_does_not_have_are_absent():
    assert DType.BFLOAT16 not in device("V100-32G").flops_per_s
    assert DType.FLOAT8_E4M3FN not in device("A100-80G").flops_per_s


def test_h100_is_dense():
    sheet = device("H100-80G")
    assert sheet.flops_per_s[DType.BFLOAT16] == 989 * 10**12
    assert sheet.memory_bytes_per_s == 3_350 * 10**9


def test_cpu_is_a_small_device_and_says_where_its_numbers_come_from():
    sheet = device("cpu")
    assert sheet.kind == "cpu"
    assert max(sheet.flops_per_s.values()) < 1e12
    assert sheet.context_bytes == 0
    assert "measured" in sheet.source


def test_unknown_device_lists_the_known_ones():
    with pytest.raises(UnknownName, match=r"unknown device 'H100'; known: .*H100-80G.*cpu"):
        device("H100")
