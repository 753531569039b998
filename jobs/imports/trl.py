"""Completions of TRL: `completions/completions_NNNNN.parquet` of GRPO-like trainers with `log_completions`.

Read against `GRPOTrainer.log` of TRL 1.16: columns `step`, `prompt`, `completion`, one per reward function, further
ones of `log_extra`, and `advantage`. Prompt and completion are texts or lists of messages. The file contains neither
the gold answer nor the weights of the reward functions. A function that does not apply to a row returns None, which TRL
logs as NaN and leaves out of the total.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jobs.imports.records import ImportedRollout, RolloutFormat, RowError, as_messages, as_number, as_step
from rl2f_core.errors import DataError
from rl2f_core.types import JsonObject

COLUMNS = frozenset({"step", "prompt", "completion", "advantage"})


class TRL(RolloutFormat):
    """TRL's completions."""

    name = "trl"
    is_training = sums_known_rewards = True
    title = "TRL completions (Parquet or JSONL): step, prompt, completion, reward columns, advantage"

    def recognizes(self, keys: frozenset[str]) -> bool:
        """Return whether all columns of TRL exist."""
        return keys >= COLUMNS

    def reward_names(self, rows: Iterable[object]) -> Sequence[str]:
        """Return the columns with floats, which TRL writes for every reward; `log_extra` can write some too.

        Without floats, integers count. Raises `DataError` for several columns unless their names contain `reward`.
        """
        kinds = {
            (name, type(value)): None for row in rows if isinstance(row, dict) for name, value in row.items()
        }  # in the order of columns
        names = [[name for name, kind in kinds if kind is wanted and name not in COLUMNS] for wanted in (float, int)]
        columns = names[0] or names[1]
        if len(columns) > 1 and not all("reward" in name for name in columns):
            raise DataError(
                f"Several columns can be rewards: {', '.join(columns)}.",
                fix="Name the rewards, with weights if they are not 1: --reward NAME --reward NAME=WEIGHT.",
            )
        return columns

    def rollouts(self, row: JsonObject) -> list[ImportedRollout]:
        """Return the rollout of a row; every further column with a number can be a reward."""
        completion = as_messages(row.get("completion"), "completion", "assistant")
        if not completion:
            raise RowError("completion: no message")
        return [
            ImportedRollout(
                prompt=as_messages(row.get("prompt"), "prompt", "user"),
                completion=completion,
                rewards={k: as_number(v, k) for k, v in row.items() if k not in COLUMNS and type(v) in (int, float)},
                advantage=as_number(row.get("advantage"), "advantage"),
                step=as_step(row.get("step"), "step"),
            )
        ]
