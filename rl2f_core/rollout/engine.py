"""The rollout engine: synchronous, lock-step dialogues.

All live dialogues advance one turn per batched call: the student answers, the verifier judges, the teacher hints on
what was wrong, the leak guard reads the hint, the student goes on.  A bad dialogue is data, not a crash: what does not
fit the context ends as `truncated`, what a component could not handle ends as `failed` and is never trained on.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rl2f_core.backends.base import Backend, Generation, Prompt, Sampling
from rl2f_core.config import RewardConfig, RolloutConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import DataError
from rl2f_core.leaks.guard import Guarded, LeakGuard
from rl2f_core.rollout.history import History, template
from rl2f_core.rollout.live import LiveDialogue, judged
from rl2f_core.rollout.render import Renderer
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.types import Rollout, StopReason, Task, Turn, Verdict


@dataclass(frozen=True, slots=True)
class Request:
    """One dialogue to play."""

    task: Task
    id: str
    group: str
    index: int
    seed: int
    turns: tuple[Turn, ...] = ()
    """Turns already played, whose sampled tokens stay as they are; the dialogue goes on after them. Where the last one
    has no hint, the teacher is asked for it."""
    max_turns: int | None = None
    """Turns allowed, those already played included; None is what `play` allows."""


@dataclass(frozen=True)
class RolloutEngine:
    """Plays dialogues between a backend's student and a teacher."""

    environment: Environment
    teacher: Teacher
    guard: LeakGuard
    backend: Backend
    renderer: Renderer
    config: RolloutConfig
    reward: RewardConfig
    oracle_stop: bool = True
    """A right answer ends the dialogue. Without it the dialogue goes on to its last turn, and its last answer counts:
    for teachers that do not know whether an attempt is right (`Teacher.after_right`)."""

    @functools.cached_property
    def history(self) -> History:
        """How the student is asked. Raises `ConfigError` where the template of fresh prompts does not fit."""
        return History(self.environment, self.renderer, template(self.config))

    def play(
        self,
        requests: Sequence[Request],
        *,
        adapter: str | None = None,
        policy: str = "base",
        max_turns: int | None = None,
        temperature: float | None = None,
        advanced: Callable[[int, int], None] | None = None,
    ) -> list[Rollout]:
        """Play every request to its end, `config.batch_size` at a time; the results are in order.

        Args:
            requests: What to play. Results depend on each request alone, not on its company.
            adapter: The student's weights, by the backend's name for them; None is the base.
            policy: How to name them in the dialogues.
            max_turns: Turns allowed; None is the configuration's.
            temperature: Sampling temperature; None is the configuration's.
            advanced: Called with (dialogues ended, dialogues in all) after every turn.
        """
        allowed = max_turns or self.config.max_turns
        sampling = Sampling(self.config.max_new_tokens, temperature or self.config.temperature, self.config.top_p)
        rollouts: list[Rollout] = []
        for start in range(0, len(requests), self.config.batch_size):
            batch = [self._begin(request, allowed) for request in requests[start : start + self.config.batch_size]]
            self._hint([d for d in batch if d.stop is None and d.turns and d.turns[-1].hint is None], adapter)
            while live := [d for d in batch if d.stop is None]:
                self._turn(live, sampling, adapter)
                if advanced is not None:
                    advanced(start + sum(d.stop is not None for d in batch), len(requests))
            rollouts += [d.rollout(policy) for d in batch]
        self.backend.forget()
        return rollouts

    def ask(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """The teacher's messages made safe for the template, so that the guard reads what the student would read."""
        return [replace(said, text=self.renderer.clean(said.text)) for said in self.teacher.feedback(requests)]

    def hints(self, requests: Sequence[FeedbackRequest]) -> list[Guarded | Exception]:
        """What each wrong attempt is answered with, asked for in one batch and read by the guard.

        A request that breaks teacher or guard has its exception in place of an answer: its company is asked one by one.
        """
        try:
            return [*self.guard.read(requests, self.ask(requests), self.teacher.name, self.ask)]
        except Exception as error:  # a teacher that breaks ends the dialogue it breaks on, not the run or its company
            return [error] if len(requests) == 1 else [self.hints([request])[0] for request in requests]

    def _begin(self, request: Request, allowed: int) -> _Limited:
        """A dialogue brought to where it goes on: the opening, then the turns that were already played."""
        dialogue = _Limited(request, self.history, request.max_turns or allowed)
        for turn in request.turns:
            dialogue.attempt(turn, *self._played(turn))
            if turn.hint is not None:
                dialogue.go_on()
        self._judge_end(dialogue)
        return dialogue

    def _judge_end(self, dialogue: _Limited) -> None:
        """End the dialogue where its last attempt, or the number of them, does."""
        last = dialogue.turn >= dialogue.limit
        if dialogue.right and (last or self.oracle_stop):
            dialogue.stop = StopReason.SOLVED
        elif last:
            dialogue.stop = StopReason.EXHAUSTED

    def _played(self, turn: Turn) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Tokens of a turn as they were sampled, or of its text where somebody wrote it (log-probabilities then 0).

        Raises `DataError` where the tokens are another tokenizer's.
        """
        tokenizer = self.backend.tokenizer
        if not turn.token_ids:
            written = (*tokenizer.encode(self.renderer.clean(turn.attempt)), tokenizer.end_id)
            return written, (0.0,) * len(written)
        try:
            same = tokenizer.decode(turn.token_ids) == turn.attempt
        except (ValueError, IndexError, OverflowError, TypeError):
            same = False
        if not same:
            raise DataError("The stored tokens are not those of this model's tokenizer.", value=turn.attempt,
                            fix="Go on with the base model that the dialogue was played with.")  # fmt: skip
        return turn.token_ids, turn.logprobs or (0.0,) * len(turn.token_ids)

    def _turn(self, live: list[_Limited], sampling: Sampling, adapter: str | None) -> None:
        room = min(self.config.context_length, self.backend.context_limit) - sampling.max_new_tokens
        for dialogue in live:
            if len(dialogue.tokens) > room:
                dialogue.stop = StopReason.SOLVED if dialogue.right else StopReason.TRUNCATED
        live = [d for d in live if d.stop is None]
        prompts = [Prompt(tuple(d.tokens), turn_seed(d.request.seed, d.turn), d.request.id) for d in live]
        generations = self.backend.generate(prompts, sampling, adapter)
        said = [self.backend.tokenizer.decode(generation.token_ids) for generation in generations]
        self._prepare(live, said)
        for dialogue, generation, text in zip(live, generations, said, strict=True):
            self._attempt(dialogue, generation, text)
            if dialogue.stop is None:
                self._judge_end(dialogue)
        self._hint([d for d in live if d.stop is None], adapter)

    def _prepare(self, live: Sequence[_Limited], said: Sequence[str]) -> None:
        """Let the environment see the attempts together."""
        with contextlib.suppress(Exception):  # what is wrong, `verify` says of the one attempt that it is wrong with
            self.environment.prepare([(d.request.task, text) for d, text in zip(live, said, strict=True)])

    def _attempt(self, dialogue: _Limited, generation: Generation, text: str) -> None:
        """Record the student's turn and judge it."""
        try:
            verdict = self.environment.verify(dialogue.request.task, text)
        except Exception as error:  # a verifier must be total; where one is not, the dialogue says so
            verdict = Verdict(correct=False, score=0.0, detail="the verifier failed")
            dialogue.fail(error)
        asked = self.history.version(dialogue.turn)
        turn = judged(dialogue.turns, verdict, self.reward, text, generation.token_ids, generation.logprobs,
                      generation.stop, asked)  # fmt: skip
        dialogue.attempt(turn, generation.token_ids, generation.logprobs)

    def _hint(self, live: list[_Limited], adapter: str | None) -> None:
        """Let the teacher answer, the guard read, and the dialogue grow by the hint."""
        if not live:
            return
        requests = [
            FeedbackRequest(d.request.task, tuple(d.turns), d.request.seed, adapter=adapter, oracle=self.oracle_stop)
            for d in live
        ]
        for dialogue, answer in zip(live, self.hints(requests), strict=True):
            dialogue.hear(answer)


class _Limited(LiveDialogue):
    """A dialogue with the number of turns that it may have."""

    def __init__(self, request: Request, history: History, limit: int) -> None:
        super().__init__(request, history)
        self.limit = limit


def turn_seed(seed: int, turn: int) -> int:
    """A 63-bit seed for one turn of one dialogue."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{turn}".encode()).digest()[:8], "big") >> 1


def derive_seed(*parts: object) -> int:
    """A 31-bit seed from a path of names and numbers, e.g. (run seed, stage, step, task, sample)."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4], "big") >> 1
