"""Real FSDP2 on ranks behind slow links: predicted step times and peaks against measured ones (`make verify-network`)."""
