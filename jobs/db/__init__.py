"""The database of the workspace."""
