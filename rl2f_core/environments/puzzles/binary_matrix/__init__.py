"""Binary matrices."""

from rl2f_core.environments.puzzles.binary_matrix import environment

__all__ = ["environment"]
