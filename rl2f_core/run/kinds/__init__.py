"""Run kinds, one module each."""
