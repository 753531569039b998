"""Convert imported rollouts to dialogue events."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence

from jobs.imports.records import ImportedRollout, RowError
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import (
    Dialogue,
    FinishReason,
    Hint,
    JsonObject,
    Message,
    RewardTerm,
    StopReason,
    Task,
    Turn,
    Verdict,
)

STAGE = TEACHER = ENVIRONMENT = "imported"
UNKNOWN = "unknown"
"""Name of the model if the file has none."""
CONDITION = "hints"
"""Condition of evaluations: the replies are those of the task itself, not of a control."""
NOT_SCORED = "The file contains only the score of the whole dialogue."
MAX_PARSED_CHARS = 200


class DialogueConverter:
    """Converts the rollouts of one file; rollouts of one step with the same prompt and answer are a group.

    Args:
        threshold: Sum of the rewards from which a rollout without a verdict counts as correct.
        source: Name of the format, the level of tasks without a name.
    """

    def __init__(self, threshold: float, source: str) -> None:
        self.threshold, self.source = threshold, source
        self._group_sizes: Counter[str] = Counter()

    def convert(self, rollout: ImportedRollout, id: str) -> DialogueEvent:
        """Return the event of a rollout; `id` is unique in the file.

        A user message after an attempt is the hint, a tool's message the observation. Only the last attempt has a
        verdict and rewards. Raises `RowError` if there is no attempt and no error.
        """
        task = self._task(rollout)
        score = self._score(rollout)
        turns = _turns(rollout, self._verdict(rollout, score))
        if not turns and rollout.error is None:
            raise RowError("no message of the assistant")
        solved = bool(turns) and turns[-1].verdict.correct and rollout.error is None
        stop = StopReason.SOLVED if solved else StopReason.EXHAUSTED
        if rollout.truncated and not solved:
            stop = StopReason.CONTEXT_FULL
        if rollout.error is not None:
            stop = StopReason.FAILED
        group = f"{rollout.step}/{task.id}"
        dialogue = Dialogue(
            id=id,
            task_id=task.id,
            group=group,
            index=self._group_sizes[group],
            turns=tuple(turns),
            stop_reason=stop,
            error=rollout.error,
            policy=rollout.model or UNKNOWN,
        )
        self._group_sizes[group] += 1
        if rollout.phase != "evaluation":
            return DialogueEvent.of(rollout.phase, STAGE, rollout.step, task, dialogue)
        names = {"checkpoint": dialogue.policy, "condition": CONDITION}
        return DialogueEvent.of(rollout.phase, STAGE, rollout.step, task, dialogue, **names)

    def _task(self, rollout: ImportedRollout) -> Task:
        public: JsonObject = {"messages": [dict(message) for message in rollout.prompt]}
        privileged = {} if rollout.answer is None else {"answer": rollout.answer}
        key = hashlib.sha256(json.dumps([public, privileged], sort_keys=True).encode()).hexdigest()[:12]
        split = "test" if rollout.phase == "evaluation" else "train"
        return Task(
            id=f"{ENVIRONMENT}/{key}",
            environment=ENVIRONMENT,
            split=split,
            level=rollout.level or self.source,
            public=public,
            privileged=privileged,
        )

    def _score(self, rollout: ImportedRollout) -> float:
        """Return the sum of the weighted rewards."""
        return sum(value * rollout.weights.get(name, 1.0) for name, value in rollout.rewards.items())

    def _verdict(self, rollout: ImportedRollout, score: float) -> Verdict:
        correct = rollout.correct
        if correct is None:
            correct = bool(rollout.rewards) and score >= self.threshold
        last = next((m["content"] for m in reversed(rollout.completion) if m["role"] == "assistant"), "")
        parsed = " ".join((rollout.parsed or last).split())[-MAX_PARSED_CHARS:] or None
        partial = min(max(score / self.threshold, 0.0), 0.99) if self.threshold > 0 else 0.0
        return Verdict(
            correct=correct and parsed is not None,
            score=1.0 if correct and parsed is not None else partial,
            parsed=parsed,
            well_formed=parsed is not None,
        )


def _turns(rollout: ImportedRollout, verdict: Verdict) -> list[Turn]:
    """Return one turn per message of the assistant."""
    attempts = [k for k, message in enumerate(rollout.completion) if message["role"] == "assistant"]
    turns = []
    for index, start in enumerate(attempts):
        last = index + 1 == len(attempts)
        after = rollout.completion[start + 1 : None if last else attempts[index + 1]]
        observation = _join(after, ("tool",))
        hint = _join(after, ("user", "system", "developer"))
        rewards = rollout.rewards if last else {}
        weights = {name: rollout.weights.get(name, 1.0) for name in rewards}
        own = verdict if last else Verdict(correct=False, score=0.0, detail=NOT_SCORED)
        turns.append(
            Turn(
                index=index,
                attempt=rollout.completion[start]["content"],
                finish_reason=FinishReason.LENGTH if last and rollout.truncated else FinishReason.EOS,
                verdict=own.model_copy(update={"observation": observation}),
                rewards=tuple(RewardTerm(name=n, score=v, weight=weights[n]) for n, v in rewards.items()),
                hint=None if hint is None else Hint(text=hint, teacher=TEACHER),
                advantage=rollout.advantage,
            )
        )
    return turns


def _join(messages: Sequence[Message], roles: Sequence[str]) -> str | None:
    """Return the messages of some roles as one text; None without any."""
    texts = [message["content"] for message in messages if message["role"] in roles]
    return "\n\n".join(texts) if texts else None
