"""Ingestion of event files into the database."""
