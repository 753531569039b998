"""Completions of TRL: `completions/completions_NNNNN.parquet` of GRPO-like trainers with `log_completions`.

Read against `GRPOTrainer.log` of TRL 1.16: columns `step`, `prompt`, `completion`, one per reward function, further
ones of `log_extra`, and `advantage`. Prompt and completion are texts or lists of messages. The file contains neither
the gold answer nor the weights of the reward functions.
"""

from __future__ import annotations

from jobs.imports.records import ImportedRollout, RolloutFormat, RowError, as_messages, as_number, as_step
from rl2f_core.types import JsonObject

COLUMNS = frozenset({"step", "prompt", "completion", "advantage"})


class TRL(RolloutFormat):
    """TRL's completions."""

    name = "trl"
    title = "TRL completions (Parquet or JSONL): step, prompt, completion, reward columns, advantage"

    def recognizes(self, keys: frozenset[str]) -> bool:
        """Return whether all columns of TRL exist."""
        return keys >= COLUMNS

    def rollouts(self, row: JsonObject) -> list[ImportedRollout]:
        """Return the rollout of a row; every further column with a number is a reward."""
        numbers = {
            name: as_number(value, name)
            for name, value in row.items()
            if name not in COLUMNS and isinstance(value, int | float)
        }
        completion = as_messages(row.get("completion"), "completion", "assistant")
        if not completion:
            raise RowError("completion: no message")
        return [
            ImportedRollout(
                prompt=as_messages(row.get("prompt"), "prompt", "user"),
                completion=completion,
                rewards={name: value for name, value in numbers.items() if value is not None},
                advantage=as_number(row.get("advantage"), "advantage"),
                step=as_step(row.get("step"), "step"),
            )
        ]
