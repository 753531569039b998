"""Knights and knaves puzzles."""

from rl2f_core.environments.knights_knaves import environment

__all__ = ["environment"]
