"""Optimisation only: integers in, decisions and bound out."""
