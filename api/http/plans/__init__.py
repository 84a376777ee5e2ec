"""Plans: ask, get, list."""
