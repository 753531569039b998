"""Tasks of the reasoning-gym package."""

from rl2f_core.environments.reasoning_gym import environment, gsm_symbolic

__all__ = ["environment", "gsm_symbolic"]
