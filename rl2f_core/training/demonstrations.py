"""Dialogues of an imperfect student, written by the environment: the data of a warm-up.

Wrong tries by the environment's error model, hints by the run's own teacher through the leak guard, and a right last
turn for a share of the dialogues.  Streamed: dialogue n of step s is made from its seed when it is needed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rl2f_core.rollout.engine import Request, RolloutEngine
from rl2f_core.rollout.rewards import turn_rewards
from rl2f_core.teachers.base import FeedbackRequest
from rl2f_core.types import Dialogue, Rollout, StopReason, TokenStream, Turn, TurnStop

POLICY = "demonstration"


def demonstrate(engine: RolloutEngine, requests: Sequence[Request], config: Any, turns: int) -> list[Rollout]:
    """One demonstration a request, in order.

    Args:
        engine: For its environment, teacher, guard and renderer; no model speaks.
        requests: What to demonstrate.
        config: The `sft` method's Config: follow, right_first, right_last.
        turns: Of the longest demonstration; the number of a dialogue is drawn evenly from 2…turns.
    """
    return [_Writer(engine, request, config, turns).write() for request in requests]


class _Writer:
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

    def write(self) -> Rollout:
        stop = StopReason.EXHAUSTED
        for k in range(self.length):
            last = k + 1 == self.length
            self._attempt(k, right=last and self.right)
            if self.turns[-1].verdict.correct:
                stop = StopReason.SOLVED
                break
            ended = None if last else self._hint(k)
            if ended is not None:
                stop = ended
                break
        request = self.request
        dialogue = Dialogue(
            id=request.id,
            task_id=request.task.id,
            group=request.group,
            index=request.index,
            turns=tuple(self.turns),
            stop=stop,
            policy=POLICY,
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

    def _hint(self, k: int) -> StopReason | None:
        """Hint on the last attempt; why the dialogue ends here, where it does."""
        request = FeedbackRequest(self.request.task, tuple(self.turns), self.request.seed)
        engine = self.engine
        answer = engine.guard.read([request], engine.ask([request]), engine.teacher.name, engine.ask)[0]
        if answer.drop:
            return StopReason.DROPPED
        self.turns[-1] = self.turns[-1].model_copy(update={"hint": answer.hint})
        self._extend(engine.renderer.suffix(answer.hint.text, ended=True), False, k)
        room = min(engine.config.context_length, engine.backend.context_limit) - engine.config.max_new_tokens
        return StopReason.TRUNCATED if len(self.tokens) > room else None

    def _extend(self, ids: Sequence[int], student: bool, turn: int) -> None:
        self.tokens += ids
        self.student += [student] * len(ids)
        self.turn_of += [turn] * len(ids)
