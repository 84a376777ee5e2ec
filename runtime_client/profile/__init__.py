"""Measures a model on the ranks of a job: what plans then know instead of assuming it from data sheets."""

from runtime_client.profile.calls import Skipped
from runtime_client.profile.options import ProfileOptions, default_points
from runtime_client.profile.run import Profiled, profile
from runtime_client.profile.world import World

__all__ = ["ProfileOptions", "Profiled", "Skipped", "World", "default_points", "profile"]
