"""The `equivalent` detector: the answer in another form."""

from rl2f_core.leaks.equivalent import detector

__all__ = ["detector"]
