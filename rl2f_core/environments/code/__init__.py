"""Python functions, judged by their behavior in a sandbox."""

from rl2f_core.environments.code import environment

__all__ = ["environment"]
