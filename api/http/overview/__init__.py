"""How much there is of everything."""
