"""Knights and knaves puzzles."""

from rl2f_core.environments.puzzles.knights_knaves import environment

__all__ = ["environment"]
