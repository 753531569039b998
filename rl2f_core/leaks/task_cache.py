"""Cache of values that a detector computes from a task."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from rl2f_core.types import Task

T = TypeVar("T")
MAX_CACHED_TASKS = 512


class TaskCache(Generic[T]):
    """Returns the value of a task object; those of the last `MAX_CACHED_TASKS` task objects are kept.

    Args:
        compute: Computes the value of a task.
    """

    def __init__(self, compute: Callable[[Task], T]) -> None:
        self._compute = compute
        self._values: OrderedDict[int, tuple[Task, T]] = OrderedDict()

    def __call__(self, task: Task) -> T:
        """Return the value of a task, from the cache if possible."""
        known = self._values.get(id(task))
        if known is None or known[0] is not task:
            known = self._values[id(task)] = task, self._compute(task)
        self._values.move_to_end(id(task))
        if len(self._values) > MAX_CACHED_TASKS:
            self._values.popitem(last=False)
        return known[1]
