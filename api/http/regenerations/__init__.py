"""Revisions of clusters, and regenerations."""
