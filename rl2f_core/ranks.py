"""The processes of one run: who this one is, and how they agree.  Alone, unless `accelerate launch` started several.

Every process holds the same state and takes the same decisions.  What could differ between them is found once and told
to all: what models say, by each process for its share of the dialogues; what disk, clock and signals say, by the main
one.  So no process has to be told what another decided, and an error of one is raised by all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rl2f_core.errors import RL2FError, RunError

A = TypeVar("A")
B = TypeVar("B")
Exchange = Callable[[Any], list[Any]]
"""Gives an object to all processes, and gets the object of each, by rank."""
PATIENCE_HOURS = 6
"""How long a process waits for the others: dialogues of unequal length, a slow teacher, a report. One that died is seen
at once by the launcher, which ends its company."""
HEARD = "heard from another process"


class Ranks:
    """This process among `count`.

    Args:
        rank: Its number, from 0; 0 is the main one, which alone writes to the run's folder.
        count: How many there are.
        exchange: How they talk; may be left out where there is one.
    """

    def __init__(self, rank: int = 0, count: int = 1, exchange: Exchange | None = None) -> None:
        self.rank, self.count = rank, count
        self._exchange: Exchange = exchange if exchange is not None else lambda value: [value]

    @property
    def main(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def wait(self) -> None:
        """Go on when all have come here."""
        self._exchange(None)

    def total(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The sum over the processes of each number; one that has no such number counts 0."""
        sums: dict[str, float] = {}
        for held in self._exchange(dict(numbers)):
            for key, value in held.items():
                sums[key] = sums.get(key, 0.0) + value
        return sums

    def gather(self, value: A) -> list[A]:
        """What each process gives, by rank."""
        found: list[A] = self._exchange(value)
        return found

    def any_of(self, asked: Callable[[], bool]) -> Callable[[], bool]:
        """`asked` of all processes: true everywhere where it is true in one. All must call it."""
        return lambda: any(self._exchange(bool(asked())))

    def from_main(self, work: Callable[[], A]) -> A:
        """Do `work` in the main process, and give its result, or the error it ended with, to all."""
        told: A = self._told(work if self.main else None)[0]
        return told

    def alone(self, work: Callable[[], A]) -> A | None:
        """As `from_main`, but the result, which need not leave the process, is given to none of the others."""
        found: list[A] = []
        self.from_main(lambda: found.append(work()))
        return found[0] if found else None

    def spread(self, items: Sequence[A], work: Callable[[Sequence[A]], Sequence[B]]) -> list[B]:
        """`work` of all items, each process doing its share; all get all results, in the items' order.

        Args:
            items: The same in every process.
            work: Gives one result an item; not called without items, unless there are none at all.
        """
        start, end = share(len(items), self.rank, self.count)
        own = items[start:end]
        parts = self._told((lambda: list(work(own))) if own or not items else list)
        return [result for part in parts for result in part]

    def _told(self, work: Callable[[], Any] | None) -> list[Any]:
        """What `work` found in each process; None where it has none to do. Raises the error of the lowest rank."""
        found: Any = None
        error: Exception | None = None
        if work is not None:
            try:
                found = work()
            except Exception as raised:  # the others wait for an answer: first it is told, then raised
                error = raised
        if self.count == 1:
            if error is not None:
                raise error
            return [found]
        told = self._exchange((found, error if error is None else _portable(error)))
        failed = next((rank for rank, (_, other) in enumerate(told) if other is not None), None)
        if failed is not None:
            if failed == self.rank and error is not None:
                raise error
            other: Exception = told[failed][1]
            other.add_note(HEARD)
            raise other
        return [result for result, _ in told]


def share(count: int, rank: int, ranks: int) -> tuple[int, int]:
    """The first of `count` items that is a rank's, and the one after its last: neighbours, as even as can be."""
    return count * rank // ranks, count * (rank + 1) // ranks


def heard(error: BaseException) -> bool:
    """Whether the error is another process's, which tells of it itself."""
    return HEARD in getattr(error, "__notes__", ())


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same where it may not survive the way to another process."""
    known = isinstance(error, RL2FError) or type(error).__module__ == "builtins"
    return error if known else RunError(f"{type(error).__name__}: {error}")


_here = Ranks()


def here() -> Ranks:
    """This process among those of its run; alone before `join`."""
    return _here


def launched() -> int:
    """How many processes the launcher started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1


def join(device: str = "auto") -> Ranks:
    """Meet the processes that the launcher started, where it started several; to be called before a model is loaded.

    Args:
        device: `ModelConfig.device`, which says whether they talk by gloo (cpu) or by the GPUs' own way.
    """
    global _here
    if launched() == 1 or _here.count > 1:
        return _here
    from datetime import timedelta

    import torch.distributed as dist
    from accelerate import PartialState

    from rl2f_core.device import resolve

    cpu = resolve(device, "float32")[0].type == "cpu"
    state = PartialState(cpu=cpu, timeout=timedelta(hours=PATIENCE_HOURS))
    count = state.num_processes

    def exchange(value: Any) -> list[Any]:
        found: list[Any] = [None] * count
        dist.all_gather_object(found, value)
        return found

    _here = Ranks(state.process_index, count, exchange)
    return _here


def leave() -> None:
    """Part from the others at a run's orderly end."""
    global _here
    if _here.count > 1:
        import torch.distributed as dist

        dist.destroy_process_group()
        _here = Ranks()
