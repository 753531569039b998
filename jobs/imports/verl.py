"""Rollout dumps of verl: `STEP.jsonl` in `trainer.rollout_data_dir` or `trainer.validation_data_dir`.

Read against `RayPPOTrainer._dump_generations` of verl 0.6: `input`, `output`, `gts`, `score`, `step`, and the values
of `reward_extra_info`. Input and output are texts without special tokens; a dialogue of several turns is one text.
"""

from __future__ import annotations

from jobs.imports.records import (
    ImportedRollout,
    RolloutFormat,
    RowError,
    as_answer,
    as_messages,
    as_number,
    as_step,
)
from rl2f_core.types import JsonObject

COLUMNS = frozenset({"input", "output", "score"})


class Verl(RolloutFormat):
    """Verl's rollout dumps."""

    name = "verl"
    title = "verl rollout dumps (JSONL): input, output, score, step, gts"

    def recognizes(self, keys: frozenset[str]) -> bool:
        """Return whether input, output and score exist."""
        return keys >= COLUMNS

    def rollouts(self, row: JsonObject) -> list[ImportedRollout]:
        """Return the rollout of a row; `acc`, if it exists, is the verdict."""
        if not isinstance(row.get("output"), str):
            raise RowError("output: no text")
        score, accuracy, parsed = as_number(row.get("score"), "score"), row.get("acc"), row.get("pred")
        return [
            ImportedRollout(
                prompt=as_messages(row.get("input"), "input", "user"),
                completion=as_messages(row["output"], "output", "assistant"),
                rewards={} if score is None else {"score": score},
                correct=accuracy >= 1 if isinstance(accuracy, int | float) else None,
                parsed=parsed if isinstance(parsed, str) else None,
                answer=as_answer(row.get("gts")),
                step=as_step(row.get("step"), "step"),
            )
        ]
