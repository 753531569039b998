"""The process group of a run; one process, unless `accelerate launch` started several.

All processes have the same state and take the same decisions. Results that could differ are exchanged: each process
generates a shard of the rollouts, and the main process reads disk, clock and signals. An error of one process is raised
in all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rl2f_core.errors import RL2FError, RunError

A = TypeVar("A")
B = TypeVar("B")
Exchange = Callable[[object], list[Any]]
"""All-gathers an object: takes this process's and returns those of all ranks."""
TIMEOUT_HOURS = 6
"""How long a process waits for the others, e.g. for a slow teacher. If one dies, the launcher ends all."""
REMOTE_ERROR_NOTE = "raised in another process"


class ProcessGroup:
    """A process group, seen from one rank.

    Args:
        rank: Rank of this process; rank 0 is the main process, the only one that writes to the run directory.
        count: World size.
        exchange: All-gather; optional for one process.
    """

    def __init__(self, rank: int = 0, count: int = 1, exchange: Exchange | None = None) -> None:
        self.rank, self.world_size = rank, count
        self._exchange: Exchange = exchange if exchange is not None else lambda value: [value]

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes (rank 0)."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for all processes."""
        self._exchange(None)

    def all_reduce_sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Sum each number over all processes; a missing number counts as 0."""
        sums: dict[str, float] = {}
        for values in self._exchange(dict(numbers)):
            for key, value in values.items():
                sums[key] = sums.get(key, 0.0) + value
        return sums

    def all_gather(self, value: A) -> list[A]:
        """Return the values of all processes, by rank."""
        values: list[A] = self._exchange(value)
        return values

    def any_rank(self, condition: Callable[[], bool]) -> Callable[[], bool]:
        """Return a function that is True in all processes if `condition` is True in one; all must call it."""
        return lambda: any(self._exchange(bool(condition())))

    def broadcast_from_main(self, work: Callable[[], A]) -> A:
        """Run `work` on rank 0; broadcast its result or exception."""
        result: A = self._exchange_results(work if self.is_main_process else None)[0]
        return result

    def run_on_main(self, work: Callable[[], A]) -> A | None:
        """Run `work` on rank 0 and broadcast only an exception; the result is None in other processes."""
        results: list[A] = []
        self.broadcast_from_main(lambda: results.append(work()))
        return results[0] if results else None

    def map_sharded(self, items: Sequence[A], work: Callable[[Sequence[A]], Sequence[B]]) -> list[B]:
        """Apply `work` to a shard of the items in each process; return all results in order.

        Args:
            items: The same items in every process.
            work: Returns one result per item; not called for an empty shard, unless there are no items.
        """
        start, end = shard_bounds(len(items), self.rank, self.world_size)
        shard = items[start:end]
        results = self._exchange_results((lambda: list(work(shard))) if shard or not items else list)
        return [result for part in results for result in part]

    def _exchange_results(self, work: Callable[[], object] | None) -> list[Any]:
        """Return the result of `work` in each process (None without work). Raises the error of the lowest rank."""
        result: object = None
        error: Exception | None = None
        if work is not None:
            try:
                result = work()
            except Exception as raised:  # exchange it before raising, because the others wait
                error = raised
        outcomes = self._exchange((result, error if error is None else _to_portable_error(error)))
        failed = next((rank for rank, (_, other) in enumerate(outcomes) if other is not None), None)
        if failed is not None:
            if failed == self.rank and error is not None:
                raise error
            other: Exception = outcomes[failed][1]
            other.add_note(REMOTE_ERROR_NOTE)
            raise other
        return [result for result, _ in outcomes]


def shard_bounds(count: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the start and end of a rank's contiguous shard of `count` items; shards are nearly equal."""
    return count * rank // ranks, count * (rank + 1) // ranks


def is_remote_error(error: BaseException) -> bool:
    """Whether another process raised the error, which also reports it."""
    return REMOTE_ERROR_NOTE in getattr(error, "__notes__", ())


def _to_portable_error(error: Exception) -> Exception:
    """Return the error, or a `RunError` with its message if it may not be picklable."""
    portable = isinstance(error, RL2FError) or type(error).__module__ == "builtins"
    return error if portable else RunError(f"{type(error).__name__}: {error}")


_current_group = ProcessGroup()


def current_group() -> ProcessGroup:
    """Return the process group; a single process before `init_distributed`."""
    return _current_group


def launched_world_size() -> int:
    """Return the number of launched processes; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1


def init_distributed(device: str = "auto") -> ProcessGroup:
    """Initialize the process group if several processes were launched. Call it before loading a model.

    Args:
        device: `ModelConfig.device`: gloo for a CPU, otherwise the backend of the GPUs.
    """
    global _current_group
    if launched_world_size() == 1 or _current_group.world_size > 1:
        return _current_group
    from datetime import timedelta

    import torch.distributed as dist
    from accelerate import PartialState

    from rl2f_core.models.device import resolve_device

    cpu = resolve_device(device, "float32")[0].type == "cpu"
    state = PartialState(cpu=cpu, timeout=timedelta(hours=TIMEOUT_HOURS))
    count = state.num_processes

    def exchange(value: object) -> list[object]:
        values: list[object] = [None] * count
        dist.all_gather_object(values, value)
        return values

    _current_group = ProcessGroup(state.process_index, count, exchange)
    return _current_group


def shutdown_distributed() -> None:
    """Destroy the process group at shutdown."""
    global _current_group
    if _current_group.world_size > 1:
        import torch.distributed as dist

        dist.destroy_process_group()
        _current_group = ProcessGroup()
