"""Dialogues of an imperfect student, written by the environment: the data of a warm-up.

Wrong tries by the environment's error model, hints by the run's own teacher through the leak guard, and a right last
turn for a share of the dialogues.  Streamed: dialogue n of step s is made from its seed when it is needed.  Lock-step,
so that a model teacher answers all dialogues of a step in one call a turn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rl2f_core.leaks.guard import Guarded
from rl2f_core.rollout.engine import Request, RolloutEngine
from rl2f_core.rollout.live import LiveDialogue, judged
from rl2f_core.teachers.base import FeedbackRequest
from rl2f_core.types import DEMONSTRATION, Rollout, StopReason, TurnStop


def demonstrate(engine: RolloutEngine, requests: Sequence[Request], config: Any, turns: int) -> list[Rollout]:
    """One demonstration a request, in order.

    Args:
        engine: For its environment, teacher, guard and renderer; no model speaks.
        requests: What to demonstrate.
        config: The `sft` method's Config: follow, right_first, right_last.
        turns: Of the longest demonstration; the number of a dialogue is drawn evenly from 2…turns.
    """
    writers = [_Writer(engine, request, config, turns) for request in requests]
    for _ in range(turns):
        live = [writer for writer in writers if writer.stop is None]
        for writer in live:
            writer.write()
        live = [writer for writer in live if writer.stop is None]
        for writer, answer in zip(live, engine.hints([writer.wants() for writer in live]) if live else (), strict=True):
            writer.read(answer)
    return [writer.rollout(DEMONSTRATION) for writer in writers]


class _Writer(LiveDialogue):
    """One demonstration as it grows."""

    def __init__(self, engine: RolloutEngine, request: Request, config: Any, turns: int) -> None:
        super().__init__(request, engine.history)
        self.engine = engine
        self.rng = random.Random(f"demonstration/{request.seed}")
        if self.rng.random() < config.right_first:
            self.length, self.right_last = 1, True
        elif turns == 1:
            self.length, self.right_last = 1, False
        else:
            self.length, self.right_last = self.rng.randint(2, turns), self.rng.random() < config.right_last
        self.follow = config.follow

    def write(self) -> None:
        """The next attempt, after which the dialogue may have ended."""
        environment, tokenizer = self.engine.environment, self.engine.backend.tokenizer
        last = self.turn + 1 == self.length
        verdicts = [turn.verdict for turn in self.turns]
        follow = self.rng.random() < self.follow
        text = environment.imitate(self.request.task, verdicts, self.rng, follow=follow, right=last and self.right_last)
        ids = (*tokenizer.encode(self.engine.renderer.clean(text)), tokenizer.end_id)
        turn = judged(self.turns, environment.verify(self.request.task, text), self.engine.reward, text, ids, (),
                      TurnStop.EOS, self.history.version(self.turn))  # fmt: skip
        self.attempt(turn, ids, (0.0,) * len(ids))
        if self.right:
            self.stop = StopReason.SOLVED
        elif last:
            self.stop = StopReason.EXHAUSTED

    def wants(self) -> FeedbackRequest:
        """A hint on the last attempt."""
        return FeedbackRequest(self.request.task, tuple(self.turns), self.request.seed)

    def read(self, answer: Guarded | Exception) -> None:
        """The hint that was asked for, after which the dialogue may have ended."""
        self.hear(answer)
        if self.stop is None:
            engine = self.engine
            room = min(engine.config.context_length, engine.backend.context_limit) - engine.config.max_new_tokens
            self.stop = StopReason.TRUNCATED if len(self.tokens) > room else None
