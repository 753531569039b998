"""Math problems of data sets and files."""

from rl2f_core.environments.math import environment

__all__ = ["environment"]
