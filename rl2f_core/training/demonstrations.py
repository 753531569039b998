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
from rl2f_core.rollout.engine import Request, RolloutEngine, failure
from rl2f_core.rollout.rewards import turn_rewards
from rl2f_core.teachers.base import FeedbackRequest
from rl2f_core.types import DEMONSTRATION, Dialogue, Rollout, StopReason, TokenStream, Turn, TurnStop


def demonstrate(engine: RolloutEngine, requests: Sequence[Request], config: Any, turns: int) -> list[Rollout]:
    """One demonstration a request, in order.

    Args:
        engine: For its environment, teacher, guard and renderer; no model speaks.
        requests: What to demonstrate.
        config: The `sft` method's Config: follow, right_first, right_last.
        turns: Of the longest demonstration; the number of a dialogue is drawn evenly from 2…turns.
    """
    writers = [_Writer(engine, request, config, turns) for request in requests]
    for turn in range(turns):
        live = [writer for writer in writers if writer.stop is None]
        for writer in live:
            writer.attempt(turn)
        live = [writer for writer in live if writer.stop is None]
        for writer, answer in zip(live, engine.hints([writer.wants() for writer in live]) if live else (), strict=True):
            writer.read(answer)
    return [writer.rollout() for writer in writers]


class _Writer:
    """One demonstration as it grows."""

    def __init__(self, engine: RolloutEngine, request: Request, config: Any, turns: int) -> None:
        self.engine, self.request = engine, request
        self.rng = random.Random(f"demonstration/{request.seed}")
        if self.rng.random() < config.right_first:
            self.length, self.right = 1, True
        elif turns == 1:
            self.length, self.right = 1, False
        else:
            self.length, self.right = self.rng.randint(2, turns), self.rng.random() < config.right_last
        self.follow = config.follow
        renderer, environment = engine.renderer, engine.environment
        self.tokens = list(renderer.opening(environment.prompt(request.task.public)))
        self.student, self.turn_of = [False] * len(self.tokens), [-1] * len(self.tokens)
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None
        self.error: str | None = None

    def attempt(self, turn: int) -> None:
        """The next attempt, after which the dialogue may have ended."""
        last = turn + 1 == self.length
        self._attempt(turn, right=last and self.right)
        if self.turns[-1].verdict.correct:
            self.stop = StopReason.SOLVED
        elif last:
            self.stop = StopReason.EXHAUSTED

    def wants(self) -> FeedbackRequest:
        """A hint on the last attempt."""
        return FeedbackRequest(self.request.task, tuple(self.turns), self.request.seed)

    def read(self, answer: Guarded | Exception) -> None:
        """The hint that was asked for, after which the dialogue may have ended."""
        if isinstance(answer, Exception):
            self.stop, self.error = StopReason.FAILED, failure(answer)
            return
        self.turns[-1] = self.turns[-1].model_copy(update={"hint": answer.hint})
        self.stop, self.error = answer.stop, self.error or answer.error
        if self.stop is None:
            engine = self.engine
            self._extend(engine.renderer.suffix(answer.hint.text, ended=True), False, len(self.turns) - 1)
            room = min(engine.config.context_length, engine.backend.context_limit) - engine.config.max_new_tokens
            self.stop = StopReason.TRUNCATED if len(self.tokens) > room else None

    def rollout(self) -> Rollout:
        """The dialogue with its tokens."""
        request = self.request
        dialogue = Dialogue(
            id=request.id,
            task_id=request.task.id,
            group=request.group,
            index=request.index,
            turns=tuple(self.turns),
            stop=self.stop or StopReason.EXHAUSTED,
            error=self.error,
            policy=DEMONSTRATION,
            seed=request.seed,
        )
        zeros = (0.0,) * len(self.tokens)
        return Rollout(dialogue, TokenStream(tuple(self.tokens), tuple(self.student), zeros, tuple(self.turn_of)))

    def _attempt(self, k: int, *, right: bool) -> None:
        environment, tokenizer = self.engine.environment, self.engine.backend.tokenizer
        verdicts = [turn.verdict for turn in self.turns]
        follow = self.rng.random() < self.follow
        text = environment.imitate(self.request.task, verdicts, self.rng, follow=follow, right=right)
        ids = (*tokenizer.encode(self.engine.renderer.clean(text)), tokenizer.end_id)
        self._extend(ids, True, k)
        verdict = environment.verify(self.request.task, text)
        before = self.turns[-1] if self.turns else None
        rewards = turn_rewards(
            self.engine.reward, verdict, before.verdict if before else None, before.hint if before else None
        )
        self.turns.append(
            Turn(index=k, attempt=text, token_ids=ids, stop=TurnStop.EOS, verdict=verdict, rewards=rewards)
        )

    def _extend(self, ids: Sequence[int], student: bool, turn: int) -> None:
        self.tokens += ids
        self.student += [student] * len(ids)
        self.turn_of += [turn] * len(ids)
