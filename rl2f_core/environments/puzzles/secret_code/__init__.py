"""Letter codes that a hint confirms in part."""

from rl2f_core.environments.puzzles.secret_code import environment

__all__ = ["environment"]
