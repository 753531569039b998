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
    Split,
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
NOT_VERIFIED = "The file contains only the score of the whole dialogue."
NO_VERDICT = "The file contains no verdict and no known reward that counts."
MAX_PARSED_CHARS = 200


class DialogueConverter:
    """Converts the rollouts of one run; those of one step with the same task set, prompt and answer are a group.

    Args:
        threshold: Sum of the rewards from which a rollout without a verdict counts as correct.
        source: Name of the format, the level of tasks without a name.
    """

    def __init__(self, threshold: float, source: str) -> None:
        self.threshold, self.source = threshold, source
        self._group_sizes: Counter[tuple[str, str]] = Counter()

    def convert(self, rollout: ImportedRollout, id: str) -> DialogueEvent:
        """Return the event of a rollout; `id` is unique in the file.

        A user message after an attempt is the hint, a tool's message the observation. Only the last attempt has
        rewards and, if the file has one, a verdict. Raises `RowError` if there is no attempt and no error.
        """
        phase, step = rollout.phase or "train", rollout.step or 0
        policy = rollout.model or UNKNOWN
        if phase == "evaluation" and rollout.step is not None:
            policy = f"{rollout.model or STAGE}@{step}"
        task = self._task(rollout)
        turns = _turns(rollout, self._verdict(rollout))
        if not turns and rollout.error is None:
            raise RowError("no message of the assistant")
        solved = bool(turns) and bool(turns[-1].verdict.correct) and rollout.error is None
        stop = StopReason.SOLVED if solved else StopReason.EXHAUSTED
        if rollout.truncated and not solved:
            stop = StopReason.CONTEXT_FULL
        if rollout.error is not None:
            stop = StopReason.FAILED
        group = f"{step}/{task.id}"
        dialogue = Dialogue(
            id=id,
            task_id=task.id,
            group=group,
            index=self._group_sizes[policy, group],
            turns=tuple(turns),
            stop_reason=stop,
            error=rollout.error,
            policy=policy,
        )
        self._group_sizes[policy, group] += 1
        names = {"checkpoint": policy, "condition": CONDITION} if phase == "evaluation" else {}
        return DialogueEvent.of(phase, STAGE, step, task, dialogue, **names)

    def _task(self, rollout: ImportedRollout) -> Task:
        public: JsonObject = {"messages": [dict(message) for message in rollout.prompt]}
        privileged = {} if rollout.answer is None else {"answer": rollout.answer}
        level = rollout.level or self.source
        parts = [public, privileged, level, *filter(None, [rollout.task_key])]
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
        split: Split = rollout.split or ("test" if rollout.phase == "evaluation" else "train")
        return Task(
            id=f"{ENVIRONMENT}/{split}/{key}",
            environment=ENVIRONMENT,
            split=split,
            level=level,
            public=public,
            privileged=privileged,
        )

    def _verdict(self, rollout: ImportedRollout) -> Verdict:
        counted = [term.value for term in _reward_terms(rollout) if term.weight]
        correct, score = rollout.correct, sum(counted)
        if correct is None and counted:
            correct = score >= self.threshold
        last = next((m["content"] for m in reversed(rollout.completion) if m["role"] == "assistant"), "")
        text = rollout.parsed or ("" if correct is None else last)
        parsed = " ".join(text.split())[-MAX_PARSED_CHARS:] or None
        if correct is None:
            return Verdict(correct=None, score=None, parsed=parsed, detail=NO_VERDICT)
        partial = min(max(score / self.threshold, 0.0), 0.99) if self.threshold > 0 else 0.0
        return Verdict(
            correct=correct, score=1.0 if correct else partial, parsed=parsed, well_formed=parsed is not None
        )


def _reward_terms(rollout: ImportedRollout) -> tuple[RewardTerm, ...]:
    """Return the known rewards with their weights; with weight 0 if one that counts is unknown, as is their sum."""
    weights = {name: rollout.weights.get(name, 1.0) for name in rollout.rewards}
    if any(rollout.rewards[name] is None for name, weight in weights.items() if weight):
        weights = dict.fromkeys(weights, 0.0)
    known = {name: score for name, score in rollout.rewards.items() if score is not None}
    return tuple(RewardTerm(name=name, score=score, weight=weights[name]) for name, score in known.items())


def _turns(rollout: ImportedRollout, verdict: Verdict) -> list[Turn]:
    """Return one turn per message of the assistant."""
    attempts = [k for k, message in enumerate(rollout.completion) if message["role"] == "assistant"]
    turns = []
    for index, start in enumerate(attempts):
        last = index + 1 == len(attempts)
        after = rollout.completion[start + 1 : None if last else attempts[index + 1]]
        observation = _join(after, ("tool",))
        hint = _join(after, ("user", "system", "developer"))
        own = verdict if last else Verdict(correct=None, score=None, detail=NOT_VERIFIED)
        turns.append(
            Turn(
                index=index,
                attempt=rollout.completion[start]["content"],
                finish_reason=FinishReason.LENGTH if last and rollout.truncated else FinishReason.EOS,
                verdict=own.model_copy(update={"observation": observation}),
                rewards=_reward_terms(rollout) if last else (),
                hint=None if hint is None else Hint(text=hint, teacher=TEACHER),
                advantage=rollout.advantage,
            )
        )
    return turns


def _join(messages: Sequence[Message], roles: Sequence[str]) -> str | None:
    """Return the messages of some roles as one text; None without any."""
    texts = [message["content"] for message in messages if message["role"] in roles]
    return "\n\n".join(texts) if texts else None
