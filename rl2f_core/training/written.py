"""Dialogues whose student's part somebody else wrote, as rollouts: texts become the tokens that the student would
have had to sample."""

from __future__ import annotations

from collections.abc import Sequence

from rl2f_core.rollout.engine import Request, RolloutEngine
from rl2f_core.rollout.rewards import turn_rewards
from rl2f_core.types import DEMONSTRATION, Dialogue, Hint, Rollout, StopReason, TokenStream, Turn, TurnStop

STORED = "stored"
"""`Hint.teacher` of a message that came with a data set."""


def transcribe(
    engine: RolloutEngine,
    request: Request,
    attempts: Sequence[str],
    hints: Sequence[str] = (),
    *,
    policy: str = DEMONSTRATION,
) -> Rollout:
    """A dialogue from its texts, each attempt verified and rewarded as if it had been played.

    Args:
        engine: For its environment, renderer, tokenizer and rewards; no model speaks.
        request: The task, and how the dialogue is called.
        attempts: The student's texts, oldest first; without any the dialogue is a failed one.
        hints: The message after each attempt but the last.
        policy: Who wrote them.
    """
    renderer, environment, tokenizer = engine.renderer, engine.environment, engine.backend.tokenizer
    tokens = list(renderer.opening(environment.prompt(request.task.public)))
    student, turn_of = [False] * len(tokens), [-1] * len(tokens)
    turns: list[Turn] = []

    def extend(ids: Sequence[int], is_student: bool, turn: int) -> None:
        tokens.extend(ids)
        student.extend([is_student] * len(ids))
        turn_of.extend([turn] * len(ids))

    for k, text in enumerate(attempts):
        ids = (*tokenizer.encode(renderer.clean(text)), tokenizer.end_id)
        extend(ids, True, k)
        verdict = environment.verify(request.task, text)
        before = turns[-1] if turns else None
        rewards = turn_rewards(
            engine.reward, verdict, before.verdict if before else None, before.hint if before else None
        )
        hint = None
        if k < len(hints):
            hint = Hint(text=hints[k], teacher=STORED)
            extend(renderer.suffix(hint.text, ended=True), False, k)
        turns.append(Turn(index=k, attempt=text, token_ids=ids, stop=TurnStop.EOS, verdict=verdict, rewards=rewards,
                          hint=hint))  # fmt: skip
    solved = bool(turns) and turns[-1].verdict.correct
    stop = StopReason.SOLVED if solved else StopReason.EXHAUSTED if turns else StopReason.FAILED
    dialogue = Dialogue(
        id=request.id,
        task_id=request.task.id,
        group=request.group,
        index=request.index,
        turns=tuple(turns),
        stop=stop,
        policy=policy,
        seed=request.seed,
    )
    zeros = (0.0,) * len(tokens)
    return Rollout(dialogue, TokenStream(tuple(tokens), tuple(student), zeros, tuple(turn_of)))
