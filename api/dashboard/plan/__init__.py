"""What the page of a plan shows, as data."""
