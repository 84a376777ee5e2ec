"""Replay of a program, and the predictions that a plan states from it."""

from planner.simulate.predict import predict
from planner.simulate.replay import Replay, replay

__all__ = ["Replay", "predict", "replay"]
