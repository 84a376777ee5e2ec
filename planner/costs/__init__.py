"""Durations and bytes of operations and collectives, from a profile or from data sheets."""

from planner.costs.model import CostModel

__all__ = ["CostModel"]
