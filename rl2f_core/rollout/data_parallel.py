"""Data-parallel rollouts: each process runs a shard of the requests, and all get all rollouts in order.

A rollout depends only on its request, so sharding changes no result. A shard is a contiguous range, so the dialogues
of a group, which share their prompt, mostly run in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl2f_core.distributed.process_group import current_group
from rl2f_core.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.types import Rollout


@dataclass(frozen=True)
class DataParallelEngine(RolloutEngine):
    """Engine that shards its requests over all processes; every process must call it with the same ones."""

    def run(self, requests: Sequence[RolloutRequest], **options: Any) -> list[Rollout]:
        """Run the requests as `RolloutEngine.run`; `on_progress` counts only this process's shard."""
        run_local = super().run
        return current_group().map_sharded(requests, lambda shard: run_local(shard, **options))
