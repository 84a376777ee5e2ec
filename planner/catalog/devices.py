"""Data sheets of devices.

FLOP/s are dense: where a vendor quotes structured sparsity, half of it. `float32` is the rate of plain float32
matmuls, as torch runs them by default; the TF32 rate is in `source`. Memory is the vendor's GB taken as 10^9 bytes,
which is close to what the driver offers: `NodeGroup.device_memory_bytes` says it exactly. The host link is PCIe,
one direction.
"""

from typing import Literal

from planner.schema import DeviceSheet, DType, UnknownName

_TERA = 10**12
_GIGA = 10**9
_PCIE3 = 15_750_000_000
_PCIE4 = 31_500_000_000
_PCIE5 = 63_000_000_000
# 0.52 GiB measured by PithTrain (https://arxiv.org/abs/2605.31463) on H100; taken for all.
_CONTEXT_BYTES = 558_345_748


def _accelerator(
    name: str,
    *,
    memory_gb: int,
    memory_gb_per_s: int,
    tflops: dict[DType, float],
    host_link_bytes_per_s: int,
    source: str,
    kind: Literal["cuda", "rocm"] = "cuda",
) -> DeviceSheet:
    flops_per_s = {dtype: round(value * _TERA) for dtype, value in tflops.items()}
    return DeviceSheet(
        name=name,
        kind=kind,
        memory_bytes=memory_gb * _GIGA,
        memory_bytes_per_s=memory_gb_per_s * _GIGA,
        flops_per_s=flops_per_s,
        vector_flops_per_s=flops_per_s[DType.FLOAT32],
        host_link_bytes_per_s=host_link_bytes_per_s,
        context_bytes=_CONTEXT_BYTES,
        source=source,
    )


def _tflops(
    *, float32: float, float16: float, bfloat16: bool = True, float8: float | None = None
) -> dict[DType, float]:
    rates = {DType.FLOAT32: float32, DType.FLOAT16: float16}
    if bfloat16:
        rates[DType.BFLOAT16] = float16
    if float8 is not None:
        rates |= {DType.FLOAT8_E4M3FN: float8, DType.FLOAT8_E5M2: float8}
    return rates


_SHEETS = (
    _accelerator(
        "A10",
        memory_gb=24,
        memory_gb_per_s=600,
        tflops=_tflops(float32=31.2, float16=125),
        host_link_bytes_per_s=_PCIE4,
        source="https://www.nvidia.com/en-us/data-center/products/a10-gpu/ (TF32 62.5 TFLOP/s)",
    ),
    _accelerator(
        "V100-32G",
        memory_gb=32,
        memory_gb_per_s=900,
        tflops=_tflops(float32=15.7, float16=125, bfloat16=False),
        host_link_bytes_per_s=_PCIE3,
        source="https://www.nvidia.com/en-us/data-center/v100/ (SXM2; neither bfloat16 nor TF32)",
    ),
    _accelerator(
        "A100-40G",
        memory_gb=40,
        memory_gb_per_s=1_555,
        tflops=_tflops(float32=19.5, float16=312),
        host_link_bytes_per_s=_PCIE4,
        source="https://www.nvidia.com/en-us/data-center/a100/ (SXM4; TF32 156 TFLOP/s)",
    ),
    _accelerator(
        "A100-80G",
        memory_gb=80,
        memory_gb_per_s=2_039,
        tflops=_tflops(float32=19.5, float16=312),
        host_link_bytes_per_s=_PCIE4,
        source="https://www.nvidia.com/en-us/data-center/a100/ (SXM4; TF32 156 TFLOP/s)",
    ),
    _accelerator(
        "L40S",
        memory_gb=48,
        memory_gb_per_s=864,
        tflops=_tflops(float32=91.6, float16=362, float8=733),
        host_link_bytes_per_s=_PCIE4,
        source="https://www.nvidia.com/en-us/data-center/l40s/ (TF32 183 TFLOP/s)",
    ),
    _accelerator(
        "RTX-4090",
        memory_gb=24,
        memory_gb_per_s=1_008,
        tflops=_tflops(float32=82.6, float16=165.2, float8=330.3),
        host_link_bytes_per_s=_PCIE4,
        source="https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf "
        "(float32 accumulation; TF32 82.6 TFLOP/s)",
    ),
    _accelerator(
        "H100-80G",
        memory_gb=80,
        memory_gb_per_s=3_350,
        tflops=_tflops(float32=67, float16=989, float8=1_979),
        host_link_bytes_per_s=_PCIE5,
        source="https://www.nvidia.com/en-us/data-center/h100/ (SXM5; TF32 494 TFLOP/s)",
    ),
    _accelerator(
        "H200",
        memory_gb=141,
        memory_gb_per_s=4_800,
        tflops=_tflops(float32=67, float16=989, float8=1_979),
        host_link_bytes_per_s=_PCIE5,
        source="https://www.nvidia.com/en-us/data-center/h200/ (SXM5; TF32 494 TFLOP/s)",
    ),
    _accelerator(
        "B200",
        memory_gb=180,
        memory_gb_per_s=8_000,
        tflops=_tflops(float32=80, float16=2_250, float8=4_500),
        host_link_bytes_per_s=_PCIE5,
        source="https://www.nvidia.com/en-us/data-center/hgx/ (HGX, 1000 W; TF32 1,100 TFLOP/s)",
    ),
    _accelerator(
        "MI300X",
        kind="rocm",
        memory_gb=192,
        memory_gb_per_s=5_300,
        tflops=_tflops(float32=163.4, float16=1_307.4, float8=2_614.9),
        host_link_bytes_per_s=_PCIE5,
        source="https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html (TF32 653.7 TFLOP/s)",
    ),
    DeviceSheet(
        name="cpu",
        kind="cpu",
        memory_bytes=4 * _GIGA,
        memory_bytes_per_s=20 * _GIGA,
        # No credit for bfloat16 instructions: many CPUs have none, and float16 runs element by element.
        flops_per_s={DType.FLOAT32: 90 * _GIGA, DType.BFLOAT16: 90 * _GIGA, DType.FLOAT16: 2 * _GIGA},
        vector_flops_per_s=12 * _GIGA,
        launch_ns=2_000,
        source="one core for one gloo rank; measured on one thread of an AMD EPYC with torch 2.13: 92 GFLOP/s in "
        "a float32 matmul of 512 x 512, 12 Gelement/s multiplied in cache, 41 GB/s copied (halved here: cores "
        "share the memory), 1.8 us per small operation",
    ),
)

_BY_NAME = {sheet.name: sheet for sheet in _SHEETS}


def device(name: str) -> DeviceSheet:
    """Data sheet of a device by its catalog name.

    Raises:
        UnknownName: no such device; the message lists the known ones.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise UnknownName("device", name, list(_BY_NAME)) from None


def device_names() -> tuple[str, ...]:
    """Names that `device` knows, in the order of the catalog."""
    return tuple(_BY_NAME)
