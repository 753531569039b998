"""What rollouts need of a tokenizer, and two of them: a Hugging Face one, and bytes for tests.

Chat markers inside any text (a problem, a hint, a student's words) are neutralised before the text goes into a
template, so nobody can write a turn for somebody else; and every special token except the end of a message is banned
from sampling, in the sampler and in the learner alike.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, Protocol

from rl2f_core.errors import ModelError
from rl2f_core.types import Message


class ChatTokenizer(Protocol):
    """Text to tokens and back, with a chat template."""

    end_id: int
    """The token that ends a student's message."""
    banned_ids: tuple[int, ...]
    """Tokens that a student may never produce."""
    markers: tuple[str, ...]
    """The texts that the template gives a meaning to."""

    def template(self, messages: Sequence[Message], *, open_turn: bool) -> str:
        """The dialogue as text; `open_turn` ends it where the student begins to speak."""
        ...

    def encode(self, text: str) -> list[int]:
        """Tokens of a templated text; markers become special tokens."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a student's tokens, special tokens left out."""
        ...


class HFChatTokenizer:
    """A Hugging Face tokenizer with a chat template."""

    def __init__(self, tokenizer: Any, vocab_size: int | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError(
                "The model's tokenizer has no chat template.",
                value=tokenizer.name_or_path,
                fix="Take an instruction-tuned model, or add chat_template.jinja to its folder.",
            )
        self.hf = tokenizer
        special = {i: t.content for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        self.markers = tuple(sorted({*special.values(), *tokenizer.all_special_tokens}, key=len, reverse=True))
        self.end_id = self._end_of_message()
        size = len(tokenizer)
        padding = range(size, vocab_size) if vocab_size and vocab_size > size else ()
        banned = {*special, *tokenizer.all_special_ids, *padding} - {self.end_id}
        self.banned_ids = tuple(sorted(banned))

    def _end_of_message(self) -> int:
        mark = "attempt"
        text = self.template(
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": mark}], open_turn=False
        )
        rest = self.encode(text[text.rindex(mark) + len(mark) :])
        specials = set(self.hf.all_special_ids) | {i for i, t in self.hf.added_tokens_decoder.items() if t.special}
        for token in rest:
            if token in specials:
                return token
        raise ModelError(
            "The chat template does not end a message with a special token.",
            value=self.hf.name_or_path,
            fix="Take a model whose template marks the end of each message, such as ChatML.",
        )

    def template(self, messages: Sequence[Message], *, open_turn: bool) -> str:
        from jinja2.exceptions import TemplateError

        try:
            return self.hf.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=open_turn)
        except TemplateError as error:
            raise ModelError(
                f"The chat template refuses the dialogue: {error}.",
                value=[message["role"] for message in messages],
                fix="Take a template with system, user and assistant messages, such as ChatML.",
            ) from error

    def encode(self, text: str) -> list[int]:
        return self.hf(text, add_special_tokens=False)["input_ids"]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.hf.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


class ByteTokenizer:
    """One token a byte, ChatML markers above 255: enough for tests, needs nothing."""

    markers: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")
    start_id: int = 256
    end_id: int = 257
    banned_ids: tuple[int, ...] = (256,)
    vocab_size = 258

    def template(self, messages: Sequence[Message], *, open_turn: bool) -> str:
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        return text + "<|im_start|>assistant\n" if open_turn else text

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        for i, piece in enumerate(text.split("<|im_start|>")):
            tokens += [self.start_id] if i else []
            for j, part in enumerate(piece.split("<|im_end|>")):
                tokens += [self.end_id] if j else []
                tokens += part.encode("utf-8", "surrogatepass")
        return tokens

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(t for t in token_ids if t < 256).decode("utf-8", "replace")


def conversation(tokenizer: ChatTokenizer, messages: Sequence[Message]) -> tuple[int, ...]:
    """Tokens of messages up to where the next one begins, chat markers in them made harmless."""
    clean: list[Message] = [
        {"role": m["role"], "content": neutralise(m["content"], tokenizer.markers)} for m in messages
    ]
    return tuple(tokenizer.encode(tokenizer.template(clean, open_turn=True)))


def neutralise(text: str, markers: Sequence[str]) -> str:
    """`text` with every chat marker broken by a space, and invisible characters other than white space removed.

    Invisible ones go first: a marker with one inside it would else be put together by their removal.
    """
    text = "".join(c for c in text if c in "\n\t" or c.isprintable() or unicodedata.category(c) == "Zs")
    for marker in filter(None, markers):
        broken = f"{marker[0]} {marker[1:]}"
        while marker in text:
            text = text.replace(marker, "" if marker in broken else broken)
    return text
