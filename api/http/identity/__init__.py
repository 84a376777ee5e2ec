"""Who the caller is."""
