"""Endpoints of labels, leak detectors and their reports."""
