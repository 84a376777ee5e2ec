"""Use cases behind the ways in: documents, plans and jobs."""
