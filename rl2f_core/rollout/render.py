"""From messages to token spans: an opening prompt, and the suffix that each hint adds.

A dialogue's tokens only ever grow: opening + attempt 0 (as sampled) + suffix(hint 0) + attempt 1 + …  Sampled tokens
are never tokenised again.  Source of the rule: re-tokenising decoded text changes tokens, and the loss would then be
taken on tokens that nobody sampled (methods.md §3).
"""

from __future__ import annotations

from rl2f_core.errors import ModelError
from rl2f_core.rollout.tokenizer import ChatTokenizer, neutralise
from rl2f_core.types import Message

_PROBLEM, _ATTEMPT, _HINT = "qzproblemqz", "qzattemptqz", "qzhintqz"


class Renderer:
    """Renders with one tokenizer and system message; the parts of the template are found once."""

    def __init__(self, tokenizer: ChatTokenizer, system: str = "") -> None:
        self.tokenizer = tokenizer
        self.system = self.clean(system)
        text = tokenizer.template(
            [
                *self._head(),
                {"role": "user", "content": _PROBLEM},
                {"role": "assistant", "content": _ATTEMPT},
                {"role": "user", "content": _HINT},
            ],
            open_turn=True,
        )
        opening = tokenizer.template([*self._head(), {"role": "user", "content": _PROBLEM}], open_turn=True)
        if not text.startswith(opening + _ATTEMPT) or text.count(_HINT) != 1:
            raise ModelError(
                "The chat template rewrites earlier messages when the dialogue goes on, so a dialogue's tokens do not "
                "only grow.",
                fix="Take a template that appends, such as ChatML.",
            )
        between = text[len(opening + _ATTEMPT) :]
        self._before_hint, self._after_hint = between.split(_HINT)
        if tokenizer.encode(self._before_hint)[:1] != [tokenizer.end_id]:
            raise ModelError("The chat template does not end an attempt with the end-of-message token at once.")

    def _head(self) -> list[Message]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def clean(self, text: str) -> str:
        """Text that is safe inside a message."""
        return neutralise(text, self.tokenizer.markers)

    def messages(self, problem: str) -> list[Message]:
        """The opening messages."""
        return [*self._head(), {"role": "user", "content": self.clean(problem)}]

    def opening(self, problem: str) -> tuple[int, ...]:
        """Tokens of system message and problem, up to where the student begins to speak."""
        return tuple(self.tokenizer.encode(self.tokenizer.template(self.messages(problem), open_turn=True)))

    def suffix(self, hint: str, *, ended: bool) -> tuple[int, ...]:
        """Tokens from the end of an attempt to where the student speaks again.

        Args:
            hint: The teacher's message.
            ended: Whether the student sampled its own end-of-message token; else the suffix begins with one.
        """
        tokens = self.tokenizer.encode(self._before_hint + self.clean(hint) + self._after_hint)
        return tuple(tokens[1:] if ended else tokens)
