"""Build the program of one micro-batch by walking through FSDP2's hooks (docs/model.md).

Knobs may be fixed (the program of a plan) or open (one program for a whole search: events carry the condition
under which they happen). The methods are named after FSDP2's own. From the outside in: `micro_batch` walks the
forward and the backward, `calls` runs the model's own work, `gathers` and `reductions` are a unit's parameters and
gradients, `emitter` writes the events down.
"""

from planner.program.build.micro_batch import build_program

__all__ = ["build_program"]
