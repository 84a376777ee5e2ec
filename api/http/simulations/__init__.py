"""Simulations: predictions without a search, and the step of a plan from inside."""
