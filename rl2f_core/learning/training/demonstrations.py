"""Demonstrations: dialogues of the environment's simulated student, for a supervised warm-up.

Wrong attempts come from the environment's error model, hints from the run's teacher through the leak guard. A fraction
of the dialogues ends with a correct turn. Each dialogue follows from its seed. All dialogues of a step advance turn by
turn, so a model teacher is called once per turn.

In a stateful environment the dialogue is an episode up to its end or the last turn: each action is the oracle's with
probability `hint_follow_rate`, and a random valid one otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from rl2f_core.dialogue.rollout.dialogue_builder import DialogueBuilder, build_turn, stop_reason
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.dialogue.rollout.leak_guard import ScreenedHint
from rl2f_core.dialogue.teachers.base import FeedbackRequest
from rl2f_core.environments.capabilities import Demonstrator
from rl2f_core.learning.methods.base import DemonstrationSettings
from rl2f_core.types import DEMONSTRATION, FinishReason, Rollout, StopReason


def demonstrate(
    engine: RolloutEngine, requests: Sequence[RolloutRequest], settings: DemonstrationSettings, turns: int
) -> list[Rollout]:
    """Return one demonstration per request, in order.

    The policy generates nothing. A dialogue has one turn if that is correct by `first_correct_rate`; otherwise its
    number of turns is drawn uniformly from 2…`turns`.
    """
    writers = [_Writer(engine, request, settings, turns) for request in requests]
    for _ in range(turns):
        for writer in writers:
            if writer.stop is None:
                writer.write_attempt()
        running = [writer for writer in writers if writer.stop is None]
        asked = [FeedbackRequest(w.request.task, tuple(w.turns), w.request.seed) for w in running]
        hints = engine.get_hints(asked) if asked else ()
        for writer, hint in zip(running, hints, strict=True):
            writer.add_hint(hint)
    return [writer.rollout(DEMONSTRATION) for writer in writers]


class _Writer(DialogueBuilder):
    """Builds one demonstration."""

    def __init__(
        self, engine: RolloutEngine, request: RolloutRequest, settings: DemonstrationSettings, turns: int
    ) -> None:
        super().__init__(request, engine.prompts)
        self.engine = engine
        self.rng = random.Random(f"demonstration/{request.seed}")
        if engine.environment.restore(request.task, ()) is not None:
            self.length, self.ends_correct = turns, False
        elif self.rng.random() < settings.first_correct_rate:
            self.length, self.ends_correct = 1, True
        else:
            self.length = self.rng.randint(2, turns) if turns > 1 else 1
            self.ends_correct = self.rng.random() < settings.final_correct_rate
        self.hint_follow_rate = settings.hint_follow_rate

    def write_attempt(self) -> None:
        """Add the next attempt, which may end the dialogue."""
        environment = self.engine.environment
        assert isinstance(environment, Demonstrator)
        last = self.turn + 1 == self.length
        follow = self.rng.random() < self.hint_follow_rate
        text = environment.simulate_attempt(
            self.request.task, self.verdicts, self.rng, follow_hint=follow, correct=last and self.ends_correct
        )
        self.begin_turn()
        ids = self.written_tokens(text)
        verdict = environment.verify_turn(self.request.task, self.verdicts, text)
        version = self.prompts.version(self.turn)
        turn = build_turn(self.turns, verdict, self.engine.reward, text, ids, (), FinishReason.EOS, version)
        self.add_attempt(turn, ids, (0.0,) * len(ids))
        self.stop = stop_reason(turn, self.length)

    def add_hint(self, hint: ScreenedHint | Exception) -> None:
        """Add the hint; the dialogue ends on an error or if no further attempt fits the context."""
        self.add_feedback(hint)
        if self.stop is None:
            engine = self.engine
            limit = min(engine.config.max_seq_len, engine.backend.max_model_len) - engine.config.max_new_tokens
            self.stop = StopReason.CONTEXT_FULL if len(self.tokens) > limit else None
