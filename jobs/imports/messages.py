"""Plain conversations: JSON lines with `messages` in OpenAI's format, and optionally `answer` and `reward`."""

from __future__ import annotations

from jobs.imports.records import (
    ImportedRollout,
    RolloutFormat,
    answers,
    as_correct,
    as_messages,
    as_number,
    as_split,
    as_step,
    split_prompt,
)
from rl2f_core.types import JsonObject


class Messages(RolloutFormat):
    """Plain conversations."""

    name = "messages"
    title = "conversations (JSONL or Parquet): messages, and optionally answer, reward, correct, step, split, policy"
    default_phase = "chat"

    def recognizes(self, keys: frozenset[str]) -> bool:
        """Return whether a column `messages` exists."""
        return "messages" in keys

    def rollouts(self, row: JsonObject) -> list[ImportedRollout]:
        """Return the rollout of a row; the prompt ends before the first message of the assistant."""
        prompt, completion = split_prompt(as_messages(row.get("messages"), "messages", "user"))
        return [
            ImportedRollout(
                prompt=prompt,
                completion=completion,
                rewards={"reward": as_number(row["reward"], "reward")} if "reward" in row else {},
                correct=as_correct(row.get("correct"), "correct"),
                **answers(row.get("answer")),
                step=as_step(row.get("step"), "step"),
                split=as_split(row.get("split")),
                model=str(row.get("policy") or ""),
            )
        ]
