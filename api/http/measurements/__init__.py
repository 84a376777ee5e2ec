"""What jobs report of their steps."""
