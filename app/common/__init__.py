"""Modules that pages, routes and commands share."""
