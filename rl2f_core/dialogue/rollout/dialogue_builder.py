"""Build a dialogue turn by turn, together with its token sequences.

The rollout loop and the writers of demonstrations both add attempts and hints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from rl2f_core.config.rollout import RewardConfig
from rl2f_core.dialogue.rollout.enumeration import (
    action_text,
    allowed_tokens,
    label_tokens,
    shuffled_actions,
    state_text,
    with_probabilities,
)
from rl2f_core.dialogue.rollout.hint_information import measure_hints
from rl2f_core.dialogue.rollout.leak_guard import ScreenedHint
from rl2f_core.dialogue.rollout.prompting import PromptBuilder
from rl2f_core.dialogue.rollout.request import RolloutRequest, turn_seed
from rl2f_core.dialogue.rollout.rewards import charge_unfinished, turn_rewards
from rl2f_core.environments.base import wrap_answer
from rl2f_core.errors import DataError, shorten
from rl2f_core.types import ActionChoice, Dialogue, FinishReason, Rollout, StopReason, TokenSequence, Turn, Verdict


@dataclass(slots=True)
class _TokenBuffer:
    """Growing token sequence."""

    tokens: list[int] = field(default_factory=list)
    student_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    allowed_tokens: dict[int, list[int]] = field(default_factory=dict)

    def append(self, tokens: Sequence[int], turn: int, logprobs: Sequence[float] | None = None) -> None:
        """Append tokens of the student (with logprobs) or of a prompt."""
        self.tokens += tokens
        self.student_mask += [logprobs is not None] * len(tokens)
        self.logprobs += [0.0] * len(tokens) if logprobs is None else list(logprobs)
        self.turn_ids += [turn] * len(tokens)

    def freeze(self) -> TokenSequence:
        return TokenSequence(
            tuple(self.tokens),
            tuple(self.student_mask),
            tuple(self.logprobs),
            tuple(self.turn_ids),
            dict(self.allowed_tokens),
        )


class DialogueBuilder:
    """A growing dialogue; it starts with the initial prompt."""

    def __init__(self, request: RolloutRequest, prompts: PromptBuilder) -> None:
        self.request, self.prompts = request, prompts
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None
        """Why the dialogue ended; None while it is active."""
        self.error: str | None = None
        self.actions: tuple[ActionChoice, ...] = ()
        """Labeled actions of the next attempt; empty unless `prompting: enumerate`."""
        self.reflection: str | None = None
        """The reflector's text for the next attempt."""
        self._buffers = [_TokenBuffer()]
        if not prompts.enumerates:
            self._buffers[-1].append(prompts.initial_prompt(request.task), -1)

    @property
    def tokens(self) -> list[int]:
        """Tokens of the current sequence: the prompt of the next attempt."""
        return self._buffers[-1].tokens

    @property
    def turn(self) -> int:
        """Index of the next turn."""
        return len(self.turns)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts so far, oldest first."""
        return tuple(turn.verdict for turn in self.turns)

    @property
    def is_correct(self) -> bool:
        """Whether the last attempt is correct."""
        return bool(self.turns) and bool(self.turns[-1].verdict.correct)

    @property
    def choices(self) -> tuple[tuple[int, ...], ...]:
        """Tokens of each label of the next attempt; empty unless `prompting: enumerate`."""
        return label_tokens(self.prompts.renderer, self.actions)

    def begin_turn(self, actions: Sequence[ActionChoice] = ()) -> None:
        """With `prompting: enumerate`, start the sequence of the next attempt with its prompt.

        `actions` are the recorded ones of a stored turn. Raises `DataError` if the state has no valid action.
        """
        if not self.prompts.enumerates:
            return
        prompts, task = self.prompts, self.request.task
        seed = turn_seed(self.request.seed, self.turn)
        self.actions = tuple(actions) or shuffled_actions(prompts, task, self.verdicts, seed)
        if self.tokens:
            self._buffers.append(_TokenBuffer())
        text = action_text(state_text(prompts.environment, task, self.turns), self.actions, self.reflection)
        self._buffers[-1].append(prompts.renderer.initial_prompt(text), self.turn - 1)

    def attempt_text(self, text: str) -> str:
        """Return the text of an attempt: of a label, the answer with its action."""
        actions = [choice.action for choice in self.actions if choice.label == text]
        return wrap_answer(actions[0]) if actions else text

    def written_tokens(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a written attempt; with `prompting: enumerate` those of its action's label.

        Raises `DataError` if its action is not among the labeled ones.
        """
        renderer = self.prompts.renderer
        if not self.actions:
            return (*renderer.tokenizer.encode(renderer.escape(text)), renderer.tokenizer.eos_token_id)
        by_text = {wrap_answer(c.action): tokens for c, tokens in zip(self.actions, self.choices, strict=True)}
        if text not in by_text:
            raise DataError("The attempt is not one of the labeled actions.", value=text, known=by_text)
        return by_text[text]

    def add_attempt(
        self,
        turn: Turn,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        choice_logprobs: Sequence[float] = (),
    ) -> None:
        """Append a turn and its tokens as sampled (or as written, with logprobs of 0).

        `choice_logprobs` are those of the labeled actions, if they are known.
        """
        buffer = self._buffers[-1]
        if self.actions:
            buffer.allowed_tokens |= allowed_tokens(self.choices, tokens, len(buffer.tokens))
            actions = with_probabilities(self.actions, choice_logprobs)
            turn = turn.model_copy(update={"actions": actions, "reflection": self.reflection})
            self.actions, self.reflection = (), None
        buffer.append(tokens, turn.index, logprobs)
        self.turns.append(turn)

    def add_feedback(self, answer: ScreenedHint | Exception) -> None:
        """Append the hint on the last attempt, or end the dialogue if there is none."""
        if isinstance(answer, Exception):
            self.fail(answer)
            return
        self.turns[-1] = self.turns[-1].model_copy(update={"hint": answer.hint})
        self.stop, self.error = answer.stop, self.error or answer.error
        if self.stop is None:
            self.add_hint_tokens()

    def add_hint_tokens(self) -> None:
        """Append the last turn's hint suffix, or start a new sequence with its reprompt.

        With `prompting: enumerate` the next prompt contains the hint (`begin_turn`).
        """
        if self.prompts.enumerates:
            return
        ended = self.tokens[-1] == self.prompts.renderer.tokenizer.eos_token_id
        tokens = self.prompts.continuation(self.request.task, self.turns[-1], ended=ended)
        if self.prompts.reprompt is not None:
            self._buffers.append(_TokenBuffer())
        self._buffers[-1].append(tokens, self.turn - 1)

    def fail(self, error: Exception) -> None:
        """End the dialogue with an error."""
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, ValidationError):
            problems = (f"{'.'.join(map(str, e['loc']))} is {e['input']!r}: {e['msg']}" for e in error.errors())
            text = f"{error.title} is invalid: {'; '.join(problems)}"
        self.stop, self.error = StopReason.FAILED, shorten(text, 500)

    def rollout(self, policy: str, *, verdicts_shown: bool = True) -> Rollout:
        """Return the dialogue with its tokens and the information in its hints.

        Args:
            policy: Name of the sampled checkpoint.
            verdicts_shown: See `measure_hints`.
        """
        request, stop = self.request, self.stop or StopReason.EXHAUSTED
        turns = charge_unfinished(self.prompts.environment, request.task, self.turns, stop)
        with contextlib.suppress(Exception):  # a measurement does not end the dialogue
            turns = measure_hints(self.prompts.environment, request.task, turns, verdicts_shown=verdicts_shown)
        dialogue = Dialogue(
            id=request.id,
            task_id=request.task.id,
            group=request.group,
            index=request.index,
            turns=turns,
            stop_reason=stop,
            error=self.error,
            policy=policy,
            seed=request.seed,
        )
        return Rollout(dialogue, tuple(buffer.freeze() for buffer in self._buffers))


def stop_reason(turn: Turn, max_turns: int, *, stop_on_correct: bool = True) -> StopReason | None:
    """Return why a dialogue ends after a turn; None if it continues.

    Args:
        turn: The last turn.
        max_turns: Maximum number of turns.
        stop_on_correct: See `RolloutEngine.stop_on_correct`. The end of an episode ends the dialogue in any case.
    """
    verdict = turn.verdict
    last = verdict.done or turn.index + 1 >= max_turns
    if verdict.correct and (last or stop_on_correct):
        return StopReason.SOLVED
    if verdict.done:
        return StopReason.ENDED
    return StopReason.EXHAUSTED if last else None


def build_turn(
    turns: Sequence[Turn],
    verdict: Verdict,
    reward: RewardConfig,
    attempt: str,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    finish_reason: FinishReason,
    prompt_template: str | None = None,
) -> Turn:
    """Build the turn after `turns`, with its rewards. Sampling logprobs are in nats, empty for written attempts."""
    before = turns[-1] if turns else None
    return Turn(
        index=len(turns),
        attempt=attempt,
        token_ids=tuple(token_ids),
        logprobs=tuple(round(p, 5) for p in logprobs),
        finish_reason=finish_reason,
        verdict=verdict,
        rewards=turn_rewards(reward, verdict, before.verdict if before else None, before.hint if before else None),
        prompt_template=prompt_template,
    )
