"""Alembic environment and schema revisions."""
