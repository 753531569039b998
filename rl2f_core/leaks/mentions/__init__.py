"""The `mentions` detector: logistic regression over the mentions of the answer."""

from rl2f_core.leaks.mentions import detector

__all__ = ["detector"]
