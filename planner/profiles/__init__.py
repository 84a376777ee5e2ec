"""What can be done with measurements before a plan rests on them: refuse implausible ones, merge, import."""

from planner.profiles.errors import ImplausibleProfile, NoMeasurements
from planner.profiles.plausible import refuse_implausible

__all__ = ["ImplausibleProfile", "NoMeasurements", "refuse_implausible"]
