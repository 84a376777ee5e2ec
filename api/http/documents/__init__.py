"""Input documents: models, clusters, profiles."""
