"""Household tasks in a text world."""

from rl2f_core.environments.worlds.household import environment

__all__ = ["environment"]
