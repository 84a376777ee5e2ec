"""Jobs: solves under way."""
