"""Lineages."""
