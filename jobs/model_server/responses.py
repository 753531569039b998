"""Responses and stream chunks of the OpenAI protocol."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobs.model_server.generation_loop import Output
from jobs.model_server.protocol import ChatRequest, CompletionRequest
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from rl2f_core.models.backends.hf.token_scores import TokenScore

MIN_LOGPROB = -9999.0
"""Replaces −∞, which is not valid JSON."""


@dataclass
class ResponseBuilder:
    """Builds the response to one request, whole or in chunks.

    Args:
        request: The request.
        prompts: Token ids of each prompt. Choice i belongs to prompt i // n.
        decode: Decodes token ids with special tokens.
        splits_characters: `decode` writes U+FFFD for each byte of an unfinished character, not one for all of them
            (byte fallback). Whether a byte continues a character is then unknown, and it counts as if it does.
    """

    request: ChatRequest | CompletionRequest
    prompts: Sequence[tuple[int, ...]]
    decode: Callable[[Sequence[int]], str]
    splits_characters: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))
    num_sampled: int = 0
    """Sampled tokens of all choices so far."""
    ends: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    """Length of the text of each choice so far, and the tokens of its unfinished last character."""

    def chunk(self, output: Output, *, is_first: bool) -> JsonObject:
        """Return a stream chunk with one output; `is_first` marks the first one of its choice."""
        self.num_sampled += len(output.token_ids)
        if isinstance(self.request, ChatRequest):
            delta: JsonObject = {"role": "assistant"} if is_first else {}
            choice = self._choice(output, {"delta": {**delta, "content": output.text}}, echo=False)
        else:
            choice = self._choice(output, {"text": self._text(output, echo=is_first)}, echo=is_first)
        usage = {"usage": None} if self.request.stream_options.include_usage else {}
        return {**self._envelope("chat.completion.chunk", has_prompt=is_first), "choices": [choice], **usage}

    def task_chunk(self, result: JsonObject) -> JsonObject:
        """Return a stream chunk with a result of an interactive task."""
        return {**self._envelope("chat.completion.chunk"), "choices": [], "task": result}

    def usage_chunk(self) -> JsonObject:
        """Return the last chunk of a stream with `include_usage`."""
        return {**self._envelope("chat.completion.chunk"), "choices": [], "usage": self._usage()}

    def whole(self, outputs: Sequence[Output], task: JsonObject | None = None) -> JsonObject:
        """Return the response of a request without a stream, from the complete output of each choice.

        `task` are the results of an interactive task.
        """
        self.num_sampled = sum(len(output.token_ids) for output in outputs)
        choices = []
        for output in sorted(outputs, key=lambda output: output.index):
            if isinstance(self.request, ChatRequest):
                content: JsonObject = {"message": {"role": "assistant", "content": output.text, "refusal": None}}
                choices.append(self._choice(output, content, echo=False))
            else:
                choices.append(self._choice(output, {"text": self._text(output, echo=True)}, echo=True))
        response = {**self._envelope("chat.completion", has_prompt=True), "choices": choices, "usage": self._usage()}
        return {**response, "task": task} if task else response

    def _envelope(self, chat_object: str, *, has_prompt: bool = False) -> JsonObject:
        chat = isinstance(self.request, ChatRequest)
        result: JsonObject = {
            "id": f"chatcmpl-{self.id}" if chat else f"cmpl-{self.id}",
            "object": chat_object if chat else "text_completion",
            "created": self.created,
            "model": self.request.model,
        }
        if chat and has_prompt and self.request.return_token_ids:
            result["prompt_token_ids"] = [token for prompt in self.prompts for token in prompt]
        return result

    def _usage(self) -> JsonObject:
        prompt = sum(map(len, self.prompts))
        total = prompt + self.num_sampled
        return {"prompt_tokens": prompt, "completion_tokens": self.num_sampled, "total_tokens": total}

    def _prompt(self, output: Output) -> tuple[int, ...]:
        return self.prompts[output.index // self.request.n]

    def _text(self, output: Output, *, echo: bool) -> str:
        """Return the text of a completion, after the prompt if it is echoed."""
        if not echo or not isinstance(self.request, CompletionRequest) or not self.request.echo:
            return output.text
        return self.decode(self._prompt(output)) + output.text

    def _choice(self, output: Output, content: JsonObject, *, echo: bool) -> JsonObject:
        choice = {"index": output.index, **content, "logprobs": None, "finish_reason": output.finish_reason}
        if isinstance(self.request, ChatRequest):
            if self.request.logprobs:
                choice["logprobs"] = {"content": self._chat_logprobs(output), "refusal": None}
        elif self.request.logprobs is not None:
            choice["logprobs"] = self._completion_logprobs(output, echo=echo and self.request.echo)
        if self.request.return_token_ids:
            choice["token_ids"] = list(output.token_ids)
            if isinstance(self.request, CompletionRequest) and echo:
                choice["prompt_token_ids"] = list(self._prompt(output))
        return choice

    def _chat_logprobs(self, output: Output) -> list[JsonObject]:
        return [
            {
                **self._chat_token(token, score.logprob),
                "top_logprobs": [self._chat_token(*pair) for pair in score.top],
            }
            for token, score in zip(output.token_ids, output.scores, strict=True)
        ]

    def _chat_token(self, token: int, logprob: float) -> JsonObject:
        text = self.decode([token])
        # a token may be a part of a character, whose bytes the text does not show
        utf8 = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": max(logprob, MIN_LOGPROB), "bytes": utf8}

    def _completion_logprobs(self, output: Output, *, echo: bool) -> JsonObject:
        """Return the logprobs of prompt (if `echo`) and completion; the first prompt token has none."""
        token_ids = list(output.token_ids)
        scores: list[TokenScore | None] = list(output.scores)
        if echo:
            token_ids = [*self._prompt(output), *token_ids]
            scores = [None, *output.prompt_scores, *scores]
        tokens = [self.decode([token]) for token in token_ids]
        offsets = [self._offset(output.index, *item) for item in zip(token_ids, tokens, strict=True)]
        return {
            "tokens": tokens,
            "token_logprobs": [None if score is None else max(score.logprob, MIN_LOGPROB) for score in scores],
            "top_logprobs": [
                None if score is None else self._top(text, score) for text, score in zip(tokens, scores, strict=True)
            ],
            "text_offset": offsets,
        }

    def _offset(self, index: int, token: int, text: str) -> int:
        """Return the position of the character in which a token begins; `text` is the token's own.

        A token that does not continue the character before it shows that the bytes of that one are not valid UTF-8:
        the text then has all characters of both.
        """
        end, pending = self.ends.get(index, (0, []))
        before, whole = self.decode(pending) if pending else "", self.decode([*pending, token])
        may_continue = len(whole) < len(before) + len(text) or (self.splits_characters and text.startswith("\ufffd"))
        if pending and may_continue:
            start = end if self.splits_characters else end + len(before) - 1
            pending = [*pending, token]
        else:
            start = end = end + len(before)
            pending, whole = [token], text
        self.ends[index] = (end, pending) if whole.endswith("\ufffd") else (end + len(whole), [])
        return start

    def _top(self, text: str, score: TokenScore) -> dict[str, float]:
        """Return the most likely tokens and the token itself by text; of equal texts, the most likely one counts."""
        top = {text: max(score.logprob, MIN_LOGPROB)}
        for token, logprob in score.top:
            key = self.decode([token])
            top[key] = max(logprob, MIN_LOGPROB, top.get(key, MIN_LOGPROB))
        return top
