"""Optimizer state off the device: in host memory or on NVMe, updated by the CPU, unit by unit."""

from runtime_client.offload.optimizer import OffloadedOptimizer

__all__ = ["OffloadedOptimizer"]
