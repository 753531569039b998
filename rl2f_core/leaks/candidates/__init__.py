"""Detector `candidates`: the statements of a hint leave one answer."""

from rl2f_core.leaks.candidates import detector

__all__ = ["detector"]
