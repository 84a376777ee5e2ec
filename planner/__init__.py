"""What a plan is, what it costs and how it is made. Pure: no I/O, no torch, no database."""

__version__ = "0.1.0"
"""Part of the identity of every plan."""
