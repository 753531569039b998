"""Search for a file in a directory tree."""

from rl2f_core.environments.worlds.auto_explore import environment

__all__ = ["environment"]
