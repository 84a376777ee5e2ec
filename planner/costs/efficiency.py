"""Share of a data sheet's rate that real kernels attain: the one place where it is assumed.

A profile replaces these numbers. They are round on purpose; each line says what it rests on.
"""

from collections.abc import Mapping
from types import MappingProxyType

from planner.schema import RegionKind

COMPUTE_PERCENT: Mapping[RegionKind, int] = MappingProxyType(
    {
        # Large bf16 matmuls: power limits and tile quantization cost about 30 % of the peak.
        RegionKind.MATMUL: 70,
        # Groups of uneven height leave tiles half empty.
        RegionKind.GROUPED_MATMUL: 50,
        # FlashAttention-2 reaches 50 to 73 % on A100 (arXiv 2307.08691), FlashAttention-3 up to 75 % on H100
        # against 35 % of its predecessor (arXiv 2407.08608).
        RegionKind.ATTENTION: 55,
        # Implicit matmuls with strided reads.
        RegionKind.CONVOLUTION: 60,
        # Arithmetic without tensor cores; almost always bound by memory instead.
        RegionKind.NORM: 50,
        RegionKind.ELEMENTWISE: 50,
        RegionKind.EMBEDDING: 50,
        RegionKind.LOSS: 50,
        # Unknown: as a poor matmul.
        RegionKind.OTHER: 50,
    }
)
"""Percent of the peak FLOP/s by kind of region."""

VECTOR_KINDS = frozenset({RegionKind.NORM, RegionKind.ELEMENTWISE, RegionKind.EMBEDDING, RegionKind.LOSS})
"""Kinds whose arithmetic runs on vector units rather than tensor cores, whatever their element type."""

MEMORY_PERCENT = 80
"""Percent of the memory bandwidth that copies and element-wise kernels attain (STREAM-like kernels on HBM)."""

LINK_PERCENT = 80
"""Percent of a link's rate that large collectives attain: nccl-tests reports a bus bandwidth of about 360 GB/s of
the 450 GB/s of NVLink 4 (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md defines it)."""

HOST_LINK_PERCENT = 80
"""Percent of the PCIe rate that copies of pinned memory attain: 25 of the 31.5 GB/s of 16 lanes of PCIe 4."""

HOST_BYTES_PER_S_PER_CORE = 1_200_000_000
"""Host memory traffic of one core in an optimizer step where all cores of a node work: optimizers are bound by
memory, and 128 cores share about 150 GB/s that element-wise kernels attain of two sockets. AdamW `foreach` then
updates about 0.24e9 parameters per second and rank with 16 cores for each rank."""
