"""Storage: tables, repositories and migrations."""
