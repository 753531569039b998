"""Generation with transformers."""

from rl2f_core.models.backends.hf import backend

__all__ = ["backend"]
