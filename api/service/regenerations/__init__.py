"""Clusters change: every plan that rests on one is made again, compared, and activated or left to a person."""
