"""The rollout engine: synchronous, lock-step dialogues.

All live dialogues advance one turn per batched call: the student answers, the verifier judges, the teacher hints on
what was wrong, the leak guard reads the hint, the student goes on.  A bad dialogue is data, not a crash: what does not
fit the context ends as `truncated`, what a component could not handle ends as `failed` and is never trained on.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rl2f_core.backends.base import Backend, Generation, Prompt, Sampling
from rl2f_core.config import RewardConfig, RolloutConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import DataError, shorten
from rl2f_core.leaks.guard import Guarded, LeakGuard
from rl2f_core.rollout.render import Renderer
from rl2f_core.rollout.rewards import turn_rewards
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.types import Dialogue, Rollout, StopReason, Task, TokenStream, Turn, Verdict


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


@dataclass(slots=True)
class _Live:
    """A dialogue in play."""

    request: Request
    tokens: list[int]
    limit: int
    """Turns allowed."""
    student: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turn_of: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    stop: StopReason | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        self.student = [False] * len(self.tokens)
        self.logprobs = [0.0] * len(self.tokens)
        self.turn_of = [-1] * len(self.tokens)

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[float] | None, turn: int) -> None:
        self.tokens += token_ids
        self.student += [logprobs is not None] * len(token_ids)
        self.logprobs += [0.0] * len(token_ids) if logprobs is None else list(logprobs)
        self.turn_of += [turn] * len(token_ids)

    @property
    def right(self) -> bool:
        """The last attempt is."""
        return bool(self.turns) and self.turns[-1].verdict.correct

    @property
    def turn(self) -> int:
        """Index of the turn that comes next."""
        return len(self.turns)

    def fail(self, error: Exception) -> None:
        self.stop, self.error = StopReason.FAILED, failure(error)

    def rollout(self, policy: str) -> Rollout:
        dialogue = Dialogue(
            id=self.request.id,
            task_id=self.request.task.id,
            group=self.request.group,
            index=self.request.index,
            turns=tuple(self.turns),
            stop=self.stop or StopReason.EXHAUSTED,
            error=self.error,
            policy=policy,
            seed=self.request.seed,
        )
        stream = TokenStream(tuple(self.tokens), tuple(self.student), tuple(self.logprobs), tuple(self.turn_of))
        return Rollout(dialogue, stream)


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
        turns = max_turns or self.config.max_turns
        sampling = Sampling(self.config.max_new_tokens, temperature or self.config.temperature, self.config.top_p)
        rollouts: list[Rollout] = []
        for start in range(0, len(requests), self.config.batch_size):
            batch = [self._begin(request, turns) for request in requests[start : start + self.config.batch_size]]
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

    def _begin(self, request: Request, turns: int) -> _Live:
        """A dialogue brought to where it goes on: the opening, then the turns that were already played."""
        opening = list(self.renderer.opening(self.environment.prompt(request.task.public)))
        dialogue = _Live(request, opening, request.max_turns or turns)
        for turn in request.turns:
            token_ids, logprobs = self._played(turn)
            dialogue.extend(token_ids, logprobs, turn.index)
            dialogue.turns.append(turn)
            if turn.hint is not None:
                self._read(dialogue, turn.hint.text)
        self._judge_end(dialogue)
        return dialogue

    def _judge_end(self, dialogue: _Live) -> None:
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

    def _read(self, dialogue: _Live, hint: str) -> None:
        """Let the dialogue grow by a hint."""
        ended = dialogue.tokens[-1] == self.backend.tokenizer.end_id
        dialogue.extend(self.renderer.suffix(hint, ended=ended), None, dialogue.turn - 1)

    def _turn(self, live: list[_Live], sampling: Sampling, adapter: str | None) -> None:
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

    def _prepare(self, live: Sequence[_Live], said: Sequence[str]) -> None:
        """Let the environment see the attempts together."""
        with contextlib.suppress(Exception):  # what is wrong, `verify` says of the one attempt that it is wrong with
            self.environment.prepare([(d.request.task, text) for d, text in zip(live, said, strict=True)])

    def _attempt(self, dialogue: _Live, generation: Generation, text: str) -> None:
        """Record the student's turn and judge it."""
        turn = dialogue.turn
        dialogue.extend(generation.token_ids, generation.logprobs, turn)
        before = dialogue.turns[-1] if dialogue.turns else None
        try:
            verdict = self.environment.verify(dialogue.request.task, text)
        except Exception as error:  # a verifier must be total; where one is not, the dialogue says so
            verdict = Verdict(correct=False, score=0.0, detail="the verifier failed")
            dialogue.fail(error)
        rewards = turn_rewards(
            self.reward, verdict, before.verdict if before else None, before.hint if before else None
        )
        dialogue.turns.append(
            Turn(
                index=turn,
                attempt=text,
                token_ids=generation.token_ids,
                logprobs=tuple(round(p, 5) for p in generation.logprobs),
                stop=generation.stop,
                verdict=verdict,
                rewards=rewards,
            )
        )

    def _hint(self, live: list[_Live], adapter: str | None) -> None:
        """Let the teacher answer, the guard read, and the dialogue grow by the hint."""
        if not live:
            return
        requests = [
            FeedbackRequest(d.request.task, tuple(d.turns), d.request.seed, adapter=adapter, oracle=self.oracle_stop)
            for d in live
        ]
        for dialogue, answer in zip(live, self.hints(requests), strict=True):
            if isinstance(answer, Exception):
                dialogue.fail(answer)
                continue
            dialogue.turns[-1] = dialogue.turns[-1].model_copy(update={"hint": answer.hint})
            dialogue.error = dialogue.error or answer.error
            dialogue.stop = answer.stop
            if dialogue.stop is None:
                self._read(dialogue, answer.hint.text)


def failure(error: Exception) -> str:
    """What a failed dialogue says of what broke it."""
    return shorten(f"{type(error).__name__}: {error}", 500)


def turn_seed(seed: int, turn: int) -> int:
    """A 63-bit seed for one turn of one dialogue."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{turn}".encode()).digest()[:8], "big") >> 1


def derive_seed(*parts: object) -> int:
    """A 31-bit seed from a path of names and numbers, e.g. (run seed, stage, step, task, sample)."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4], "big") >> 1
