"""Taxi on random maps."""

from rl2f_core.environments.worlds.taxi import environment

__all__ = ["environment"]
