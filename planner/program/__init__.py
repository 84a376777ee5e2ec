"""The program of a plan: what FSDP2 executes in one micro-batch, in issue order (see docs/model.md)."""
