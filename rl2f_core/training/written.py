"""Dialogues whose student's part somebody else wrote, as rollouts: texts become the tokens that the student would
have had to sample."""

from __future__ import annotations

from collections.abc import Sequence

from rl2f_core.rollout.engine import Request, RolloutEngine
from rl2f_core.rollout.live import LiveDialogue, judged
from rl2f_core.types import DEMONSTRATION, Hint, Rollout, StopReason, TurnStop

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
    tokenizer = engine.backend.tokenizer
    live = LiveDialogue(request, engine.history)
    for k, text in enumerate(attempts):
        ids = (*tokenizer.encode(engine.renderer.clean(text)), tokenizer.end_id)
        verdict = engine.environment.verify(request.task, text)
        turn = judged(live.turns, verdict, engine.reward, text, ids, (), TurnStop.EOS, engine.history.version(k))
        live.attempt(turn, ids, (0.0,) * len(ids))
        if k < len(hints):
            live.turns[-1] = turn.model_copy(update={"hint": Hint(text=hints[k], teacher=STORED)})
            live.go_on()
    live.stop = StopReason.SOLVED if live.right else StopReason.EXHAUSTED if live.turns else StopReason.FAILED
    return live.rollout(policy)
