"""Rollout dumps of verl: `STEP.jsonl` in `trainer.rollout_data_dir` or `trainer.validation_data_dir`.

Read against `RayPPOTrainer._dump_generations` of verl 0.6: `input`, `output`, `gts`, `score`, `step`, and the values
of `reward_extra_info`. Input and output are texts without special tokens; a dialogue of several turns is one text.
"""

from __future__ import annotations

from jobs.imports.records import (
    ImportedRollout,
    RolloutFormat,
    RowError,
    answers,
    as_correct,
    as_messages,
    as_number,
    as_step,
)
from rl2f_core.types import JsonObject

COLUMNS = frozenset({"input", "output", "score"})


class Verl(RolloutFormat):
    """Verl's rollout dumps."""

    name = "verl"
    is_training = True
    title = "verl rollout dumps (JSONL): input, output, score, step, gts"

    def recognizes(self, keys: frozenset[str]) -> bool:
        """Return whether input, output and score exist."""
        return keys >= COLUMNS

    def rollouts(self, row: JsonObject) -> list[ImportedRollout]:
        """Return the rollout of a row; `acc`, if it exists, is the verdict. Only validation writes a column `reward`.

        verl writes NumPy's values as text.
        """
        output, parsed = row.get("output"), row.get("pred")
        if not isinstance(output, str):
            raise RowError("output: no text")
        prompt = as_messages(row.get("input"), "input", "user")
        if prompt and prompt[-1]["role"] == "assistant":  # the template begins the assistant's message
            output = prompt.pop()["content"] + output
        return [
            ImportedRollout(
                prompt=prompt,
                completion=as_messages(output, "output", "assistant"),
                rewards={"score": as_number(row.get("score"), "score")},
                correct=as_correct(row.get("acc"), "acc"),
                parsed=parsed if isinstance(parsed, str) else None,
                **answers(row.get("gts")),
                phase="evaluation" if "reward" in row else None,
                step=as_step(row.get("step"), "step"),
            )
        ]
