"""Leaks of known kind, which the teacher `leaky` plants."""
