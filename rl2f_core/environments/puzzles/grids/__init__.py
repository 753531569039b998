"""Mazes and shortest paths on grids."""

from rl2f_core.environments.puzzles.grids import maze, shortest_path

__all__ = ["maze", "shortest_path"]
