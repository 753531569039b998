"""Tokenizer interface of rollouts, with a Hugging Face tokenizer and a byte tokenizer for tests.

Special tokens in texts (problems, hints, attempts) are escaped before a template is applied, so no text can forge a
turn. Sampler and learner ban all special tokens except the end-of-turn token.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, Protocol

from rl2f_core.errors import ModelError
from rl2f_core.types import Message

TEMPLATE_FIX = "Correct chat_template.jinja in the model's folder, or use a model with a template such as ChatML."


class ChatTokenizer(Protocol):
    """Tokenizer with a chat template."""

    eos_token_id: int
    """The end-of-turn token."""
    banned_token_ids: tuple[int, ...]
    """Tokens that are never sampled."""
    special_tokens: tuple[str, ...]
    """Texts of the special tokens."""

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Render messages to text."""

    def encode(self, text: str) -> list[int]:
        """Encode rendered text, including special tokens."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode tokens without special tokens."""


class HFChatTokenizer:
    """A Hugging Face tokenizer with a chat template."""

    def __init__(self, tokenizer: Any, vocab_size: int | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError(
                "The model's tokenizer has no chat template.",
                value=tokenizer.name_or_path,
                fix="Use an instruction-tuned model, or add chat_template.jinja to its folder.",
            )
        self.hf = tokenizer
        special = {i: t.content for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        self.special_tokens = tuple(sorted({*special.values(), *tokenizer.all_special_tokens}, key=len, reverse=True))
        self.eos_token_id = self._find_end_of_turn()
        size = len(tokenizer)
        padding = range(size, vocab_size) if vocab_size and vocab_size > size else ()
        banned = {*special, *tokenizer.all_special_ids, *padding} - {self.eos_token_id}
        self.banned_token_ids = tuple(sorted(banned))

    def _find_end_of_turn(self) -> int:
        """Return the first special token after an assistant message in the chat template."""
        content = "attempt"
        text = self.apply_chat_template(
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}], add_generation_prompt=False
        )
        special = set(self.hf.all_special_ids) | {i for i, t in self.hf.added_tokens_decoder.items() if t.special}
        _, shown, rest = text.rpartition(content)
        if not shown:
            raise ModelError(
                "The chat template omits or changes the text of an assistant message.",
                value=self.hf.name_or_path,
                fix=TEMPLATE_FIX,
            )
        for token in self.encode(rest):
            if token in special:
                return token
        raise ModelError(
            "The chat template does not end a message with a special token.",
            value=self.hf.name_or_path,
            fix="Use a model whose template marks the end of each message, such as ChatML.",
        )

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        from jinja2.exceptions import TemplateSyntaxError

        try:
            return self.hf.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except TemplateSyntaxError as error:
            raise ModelError(
                f"The model's chat template is not valid: line {error.lineno}: {error.message}",
                value=self.hf.name_or_path,
                fix=TEMPLATE_FIX,
            ) from error
        except Exception as error:  # a template is a program of the model
            roles = ", ".join(message["role"] for message in messages)
            raise ModelError(
                f"The model's chat template failed on messages with the roles {roles}: {str(error).rstrip('.')}.",
                value=self.hf.name_or_path,
                fix=TEMPLATE_FIX,
            ) from error

    def encode(self, text: str) -> list[int]:
        return self.hf(text, add_special_tokens=False)["input_ids"]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.hf.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


class ByteTokenizer:
    """One token per byte, and ChatML's special tokens above 255; for tests."""

    special_tokens: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")
    start_id: int = 256
    eos_token_id: int = 257
    banned_token_ids: tuple[int, ...] = (256,)
    vocab_size = 258

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        return text + "<|im_start|>assistant\n" if add_generation_prompt else text

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        for i, piece in enumerate(text.split("<|im_start|>")):
            tokens += [self.start_id] if i else []
            for j, part in enumerate(piece.split("<|im_end|>")):
                tokens += [self.eos_token_id] if j else []
                tokens += part.encode("utf-8", "surrogatepass")
        return tokens

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(t for t in token_ids if t < 256).decode("utf-8", "replace")


def encode_chat(tokenizer: ChatTokenizer, messages: Sequence[Message]) -> tuple[int, ...]:
    """Encode messages and the generation prompt, with escaped special tokens."""
    escaped: list[Message] = [
        {"role": m["role"], "content": escape_special_tokens(m["content"], tokenizer.special_tokens)} for m in messages
    ]
    return tuple(tokenizer.encode(tokenizer.apply_chat_template(escaped, add_generation_prompt=True)))


def escape_special_tokens(text: str, special_tokens: Sequence[str]) -> str:
    """Break special tokens with a space and remove invisible characters.

    Invisible characters are removed first, because their removal may create a special token.
    """
    if not text.replace("\n", "").replace("\t", "").isprintable():
        text = "".join(c for c in text if c in "\n\t" or c.isprintable() or unicodedata.category(c) == "Zs")
    for token in filter(None, special_tokens):
        broken = f"{token[0]} {token[1:]}"
        while token in text:
            text = text.replace(token, "" if token in broken else broken)
    return text
