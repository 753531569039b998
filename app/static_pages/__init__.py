"""A run as a folder of static pages."""
