"""Rollouts from written dialogues: their texts become the tokens that the student would have sampled."""

from __future__ import annotations

from collections.abc import Sequence

from rl2f_core.dialogue.rollout.dialogue_builder import DialogueBuilder, build_turn, stop_reason
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.types import DEMONSTRATION, FinishReason, Hint, Rollout, StopReason

STORED = "stored"
"""`Hint.teacher` of a message from a dataset."""


def rollout_from_text(
    engine: RolloutEngine,
    request: RolloutRequest,
    attempts: Sequence[str],
    hints: Sequence[str] = (),
    *,
    policy: str = DEMONSTRATION,
) -> Rollout:
    """Build a rollout from texts, with verdicts and rewards, without generation.

    Without attempts, the dialogue is a failed one. There is a hint after each attempt but the last.
    """
    builder = DialogueBuilder(request, engine.prompts)
    for k, text in enumerate(attempts):
        builder.begin_turn()
        ids = builder.written_tokens(text)
        verdict = engine.environment.verify_turn(request.task, builder.verdicts, text)
        turn = build_turn(
            builder.turns, verdict, engine.reward, text, ids, (), FinishReason.EOS, engine.prompts.version(k)
        )
        builder.add_attempt(turn, ids, (0.0,) * len(ids))
        if k < len(hints):
            builder.turns[-1] = turn.model_copy(update={"hint": Hint(text=hints[k], teacher=STORED)})
            builder.add_hint_tokens()
    builder.stop = stop_reason(builder.turns[-1], builder.turn) if builder.turns else StopReason.FAILED
    return builder.rollout(policy)
