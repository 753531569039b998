"""Tasks of the reasoning-gym package."""

from rl2f_core.environments.reasoning_gym import environment

__all__ = ["environment"]
