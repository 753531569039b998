"""Arithmetic and number guessing."""

from rl2f_core.environments.puzzles.numbers import arithmetic, guess_number

__all__ = ["arithmetic", "guess_number"]
