"""Generation with transformers."""

from rl2f_core.backends.hf import backend

__all__ = ["backend"]
