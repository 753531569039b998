"""Tasksets of the package verifiers as environments, and environments as a taskset."""

from rl2f_core.environments.verifiers import environment

__all__ = ["environment"]
