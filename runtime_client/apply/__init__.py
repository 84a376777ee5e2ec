"""Carry out a plan on a live module with `torch.distributed.fsdp.fully_shard`."""

from runtime_client.apply.applied import AppliedPlan
from runtime_client.apply.apply import apply_plan
from runtime_client.apply.decisions import apply_decisions
from runtime_client.features import CLIENT_FEATURES

__all__ = ["CLIENT_FEATURES", "AppliedPlan", "apply_decisions", "apply_plan"]
