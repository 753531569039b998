"""Plain conversations: rows with `messages` in OpenAI's format, such as the type `messages` of an export."""

from __future__ import annotations

from typing import get_args

from jobs.imports.records import (
    ImportedRollout,
    Phase,
    RolloutFormat,
    answers,
    as_correct,
    as_messages,
    as_number,
    as_split,
    as_step,
    split_prompt,
)
from rl2f_core.run.events import OWN_CONDITIONS
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
        """Return the rollout of a row; the prompt ends before the first message of the assistant.

        Rows of an export have `verdicts` and `rewards` of each turn instead of `correct` and `reward`.
        """
        prompt, completion = split_prompt(as_messages(row.get("messages"), "messages", "user"))
        match row:
            case {"verdicts": [*_, {"correct": correct}], "rewards": [*rewards]}:
                numbers = [as_number(reward, "rewards") for reward in rewards]
                known = [number for number in numbers if number is not None]
                row = {"correct": correct, "reward": sum(known) if len(known) == len(numbers) else None, **row}
        is_own = row.get("condition") in (None, *OWN_CONDITIONS)  # a report has no controls
        return [
            ImportedRollout(
                prompt=prompt,
                completion=completion,
                rewards={"reward": as_number(row["reward"], "reward")} if "reward" in row else {},
                correct=as_correct(row.get("correct"), "correct"),
                **answers(row.get("answer")),
                phase=row["phase"] if is_own and row.get("phase") in get_args(Phase) else None,
                step=as_step(row.get("step"), "step"),
                level=str(row.get("level") or ""),
                task_key=str(row.get("task_key") or ""),
                split=as_split(row.get("split")),
                model=str(row.get("policy") or ""),
            )
        ]
