"""The independent checker: recomputes time, memory and feasibility of a plan.

It shares no code with solver, program and simulator. Where they build and replay a program of operations, it
imitates the hooks of FSDP2 one by one on virtual clocks and byte counters.
"""

from planner.check.costs import StepCosts
from planner.check.report import CheckReport, check
from planner.check.step import Recomputed, recompute

__all__ = ["CheckReport", "Recomputed", "StepCosts", "check", "recompute"]
