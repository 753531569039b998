"""Experiment trackers that mirror a run."""
