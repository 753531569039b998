"""Render messages to tokens: the initial prompt, and the suffix of each hint.

The tokens of a dialogue only grow: initial prompt + attempt 0 (as sampled) + hint suffix 0 + attempt 1 + … Sampled
tokens are never encoded again, because encoding decoded text may give other tokens, which the policy did not sample.
"""

from __future__ import annotations

from rl2f_core.errors import ModelError
from rl2f_core.models.tokenizer import TEMPLATE_FIX, ChatTokenizer, escape_special_tokens
from rl2f_core.types import Message

_PROBLEM, _ATTEMPT, _HINT = "qzproblemqz", "qzattemptqz", "qzhintqz"


class ChatRenderer:
    """Renders with one tokenizer and system message."""

    def __init__(self, tokenizer: ChatTokenizer, system: str = "") -> None:
        self.tokenizer = tokenizer
        self.system = self.escape(system)
        text = tokenizer.apply_chat_template(
            [
                *self._head(),
                {"role": "user", "content": _PROBLEM},
                {"role": "assistant", "content": _ATTEMPT},
                {"role": "user", "content": _HINT},
            ],
            add_generation_prompt=True,
        )
        initial = tokenizer.apply_chat_template(
            [*self._head(), {"role": "user", "content": _PROBLEM}], add_generation_prompt=True
        )
        if _PROBLEM not in initial or self.system.strip() not in initial:
            raise ModelError(
                f"The chat template omits the {'system' if _PROBLEM in initial else 'user'} message.", fix=TEMPLATE_FIX
            )
        if not text.startswith(initial + _ATTEMPT) or text.count(_HINT) != 1:
            raise ModelError(
                "The chat template rewrites earlier messages when the dialogue continues, so its tokens do not only "
                "grow.",
                fix="Use a template that appends, such as ChatML.",
            )
        self._before_hint, self._after_hint = text[len(initial + _ATTEMPT) :].split(_HINT)
        if tokenizer.encode(self._before_hint)[:1] != [tokenizer.eos_token_id]:
            raise ModelError("The chat template does not end an attempt directly with the end-of-turn token.")

    def _head(self) -> list[Message]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def escape(self, text: str) -> str:
        """Escape special tokens in the text of a message."""
        return escape_special_tokens(text, self.tokenizer.special_tokens)

    def messages(self, problem: str) -> list[Message]:
        """Return the messages of the initial prompt."""
        return [*self._head(), {"role": "user", "content": self.escape(problem)}]

    def initial_prompt(self, problem: str) -> tuple[int, ...]:
        """Return the tokens of system message, problem and generation prompt."""
        text = self.tokenizer.apply_chat_template(self.messages(problem), add_generation_prompt=True)
        return tuple(self.tokenizer.encode(text))

    def hint_suffix(self, hint: str, *, ended: bool) -> tuple[int, ...]:
        """Return the tokens between an attempt and the next one.

        They start with the end-of-turn token, unless the student sampled it (`ended`).
        """
        tokens = self.tokenizer.encode(self._before_hint + self.escape(hint) + self._after_hint)
        return tuple(tokens[1:] if ended else tokens)
