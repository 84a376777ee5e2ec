"""What decisions must keep so that their step can be computed, and FSDP2 would take them; one concept a module."""
