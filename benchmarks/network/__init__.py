"""Real FSDP2 on ranks behind slow links: predicted steps and peaks against measured ones."""
