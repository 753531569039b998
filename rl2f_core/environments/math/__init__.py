"""Mathematical problems from data sets."""

from rl2f_core.environments.math import environment, gsm_symbolic

__all__ = ["environment", "gsm_symbolic"]
