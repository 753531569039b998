"""Runs as Ray Jobs: `executor` talks to a cluster through `client`, `placement` decides what fits."""

from jobs.executors.ray.executor import RayExecutor

__all__ = ["RayExecutor"]
