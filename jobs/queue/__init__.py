"""The queue of runs: the only writer of run status."""

from jobs.queue.queue import Queue

__all__ = ["Queue"]
