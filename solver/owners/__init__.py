"""Which rank updates which whole matrix."""
