"""Questions of a local file, with a checker of choice."""

from rl2f_core.environments.dataset import environment

__all__ = ["environment"]
