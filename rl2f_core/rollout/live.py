"""A dialogue as it grows: its turns for people, its streams of tokens for the learner.

Played by a model or written by an environment, it grows in the same two ways: by an attempt, and by the hint after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rl2f_core.config import RewardConfig
from rl2f_core.errors import shorten
from rl2f_core.leaks.guard import Guarded
from rl2f_core.rollout.history import History
from rl2f_core.rollout.requests import Request
from rl2f_core.rollout.rewards import turn_rewards
from rl2f_core.types import Dialogue, Rollout, StopReason, TokenStream, Turn, TurnStop, Verdict


@dataclass(slots=True)
class _Tape:
    """A stream that is still written."""

    tokens: list[int] = field(default_factory=list)
    student: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turn_of: list[int] = field(default_factory=list)

    def write(self, tokens: Sequence[int], turn: int, logprobs: Sequence[float] | None = None) -> None:
        """Append tokens: the student's where there are log-probabilities, else context."""
        self.tokens += tokens
        self.student += [logprobs is not None] * len(tokens)
        self.logprobs += [0.0] * len(tokens) if logprobs is None else list(logprobs)
        self.turn_of += [turn] * len(tokens)

    def stream(self) -> TokenStream:
        return TokenStream(tuple(self.tokens), tuple(self.student), tuple(self.logprobs), tuple(self.turn_of))


class LiveDialogue:
    """One dialogue in play; it begins with the problem."""

    def __init__(self, request: Request, history: History) -> None:
        self.request, self.history = request, history
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None
        """Why it ended; None while it is played."""
        self.error: str | None = None
        self._tapes = [_Tape()]
        self._tapes[-1].write(history.opening(request.task), -1)

    @property
    def tokens(self) -> list[int]:
        """What the student has read and said where it speaks next: the current stream."""
        return self._tapes[-1].tokens

    @property
    def turn(self) -> int:
        """Index of the turn that comes next."""
        return len(self.turns)

    @property
    def right(self) -> bool:
        """The last attempt is."""
        return bool(self.turns) and self.turns[-1].verdict.correct

    def attempt(self, turn: Turn, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Grow by the student's turn, whose tokens stay as they were sampled (or written: log-probabilities 0)."""
        self._tapes[-1].write(tokens, turn.index, logprobs)
        self.turns.append(turn)

    def hear(self, answer: Guarded | Exception) -> None:
        """Keep the hint on the last attempt and grow by it, or end where there is none to go on from."""
        if isinstance(answer, Exception):
            self.fail(answer)
            return
        self.turns[-1] = self.turns[-1].model_copy(update={"hint": answer.hint})
        self.stop, self.error = answer.stop, self.error or answer.error
        if self.stop is None:
            self.go_on()

    def go_on(self) -> None:
        """Grow by the last turn's hint: in the same stream, or in the fresh one that it opens."""
        ended = self.tokens[-1] == self.history.renderer.tokenizer.end_id
        tokens = self.history.after(self.request.task, self.turns[-1], ended=ended)
        if self.history.fresh is not None:
            self._tapes.append(_Tape())
        self._tapes[-1].write(tokens, self.turn - 1)

    def fail(self, error: Exception) -> None:
        """End by an error."""
        self.stop, self.error = StopReason.FAILED, failure(error)

    def rollout(self, policy: str) -> Rollout:
        """The dialogue with its tokens; `policy` names who spoke for the student."""
        request = self.request
        dialogue = Dialogue(
            id=request.id,
            task_id=request.task.id,
            group=request.group,
            index=request.index,
            turns=tuple(self.turns),
            stop=self.stop or StopReason.EXHAUSTED,
            error=self.error,
            policy=policy,
            seed=request.seed,
        )
        return Rollout(dialogue, tuple(tape.stream() for tape in self._tapes))


def judged(
    turns: Sequence[Turn],
    verdict: Verdict,
    reward: RewardConfig,
    attempt: str,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    stop: TurnStop,
    prompt: str | None = None,
) -> Turn:
    """The turn after `turns`, with its verdict and rewards.

    Args:
        turns: Those before it, each with its hint.
        verdict: On the attempt.
        reward: Which terms.
        attempt: The student's text.
        token_ids: As sampled.
        logprobs: One each, in nats; none where they were not sampled.
        stop: Why it ended.
        prompt: See `Turn.prompt`.
    """
    before = turns[-1] if turns else None
    return Turn(
        index=len(turns),
        attempt=attempt,
        token_ids=tuple(token_ids),
        logprobs=tuple(round(p, 5) for p in logprobs),
        stop=stop,
        verdict=verdict,
        rewards=turn_rewards(reward, verdict, before.verdict if before else None, before.hint if before else None),
        prompt=prompt,
    )


def failure(error: Exception) -> str:
    """What a failed dialogue says of what broke it."""
    return shorten(f"{type(error).__name__}: {error}", 500)
