"""What vLLM is asked and what it answers, as plain values: the same for an engine of our own and for a server.

vLLM is told to return *processed* log-probabilities: after the bias and the temperature, before the draw.  So they are
those of `Generation`, with two differences that vLLM leaves no choice in:

- with `top_p` below 1 they are those of the nucleus alone, made to sum to one;
- below `COLDEST` the likeliest token is taken, and its log-probability is 0, the limit of a falling temperature.

Banned tokens get the bias −100 (nats, before the temperature), the least that a server takes: of a token that the model
finds as likely as any other e⁻¹⁰⁰ is left, which is 0 in float32.  A list of allowed ids would be exact, but vLLM's
runner on GPUs takes 1,024 of them at most.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rl2f_core.backends.base import Generation, Sampling
from rl2f_core.errors import RunError
from rl2f_core.types import TurnStop

BANNED_BIAS = -100.0
COLDEST = 0.01
"""The lowest temperature that vLLM samples at; it would raise lower ones to this in silence."""
MOST_BIASED = 1024
"""Tokens whose logits vLLM's second model runner, its default on GPUs, can bias in one request."""
_SEED_BITS = 63
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The sizes of adapter that vLLM makes room for."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One version of one adapter. An engine keeps what it computed by name, so every version has a name of its own."""

    name: str
    number: int
    folder: str
    rank: int
    targets: tuple[str, ...] = ()
    """Last names of the layers that it changes, e.g. `q_proj`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: tokens, vLLM's sampling parameters, and the adapter that answers (None is the base)."""

    id: str
    tokens: tuple[int, ...]
    params: dict[str, Any]
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request: the tokens drawn with their log-probabilities, or of a scored prompt those of its own tokens."""

    id: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


class Engine(Protocol):
    """A vLLM that answers: requests go in at any time, answers come out as they end."""

    context_limit: int
    """Tokens of a prompt and its answer."""

    def submit(self, asked: Asked) -> None:
        """Let a request join those under way."""
        ...

    def finished(self) -> list[Answer]:
        """What has ended since the last call; waits for the first. Raises `RunError` where the engine is lost."""
        ...

    def cancel(self, ids: Sequence[str]) -> None:
        """Give requests up; no answer comes to them."""
        ...

    def load(self, adapter: Adapter) -> None:
        """Read an adapter now. Raises `AdapterError` where vLLM refuses it."""
        ...

    def drop(self, adapter: Adapter) -> None:
        """Forget an adapter."""
        ...

    def forget(self) -> None:
        """Drop the prefix cache."""
        ...

    def sleep(self) -> None:
        """Give the GPU's memory back until `wake`."""
        ...

    def wake(self) -> None:
        """Take it again."""
        ...

    def close(self) -> None:
        """Leave nothing behind. Twice is once."""
        ...


def generation_params(sampling: Sampling, seed: int, end_id: int, banned: Sequence[int]) -> dict[str, Any]:
    """vLLM's sampling parameters of one student turn.

    Every parameter that a server could have a default of its own for is named. The message's end token ends the turn
    and stays in it; the model's own idea of an end is ignored, as it is banned where it is another token.
    """
    cold = sampling.temperature < COLDEST
    return {
        "temperature": 0.0 if cold else sampling.temperature,
        "top_p": 1.0 if cold else sampling.top_p,
        **_NEUTRAL,
        "seed": seed & ((1 << _SEED_BITS) - 1),
        "max_tokens": sampling.max_new_tokens,
        "stop_token_ids": [end_id],
        "logprobs": 0,
        "logit_bias": {str(token): BANNED_BIAS for token in banned},
    }


def scoring_params() -> dict[str, Any]:
    """vLLM's parameters for the log-probabilities of a prompt's own tokens; one token is drawn, as vLLM must, for
    nothing."""
    return {"temperature": 0.0, "top_p": 1.0, **_NEUTRAL, "max_tokens": 1, "prompt_logprobs": 0}


_NEUTRAL: dict[str, Any] = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,
}


def generation_of(answer: Answer, sampling: Sampling, end_id: int) -> Generation:
    """The student's turn in an answer; log-probabilities that rounding left above 0 are 0.

    Raises `RunError` where a log-probability is no number.
    """
    if any(math.isnan(logp) for logp in answer.logprobs):
        raise RunError("vLLM returned a log-probability that is no number.", value=answer.logprobs,
                       fix="Set model.dtype to bfloat16 or float32; float16 may overflow.")  # fmt: skip
    cold = sampling.temperature < COLDEST
    logprobs = tuple(0.0 if cold else min(0.0, logp) for logp in answer.logprobs)
    ended = bool(answer.tokens) and answer.tokens[-1] == end_id
    return Generation(answer.tokens, logprobs, TurnStop.EOS if ended else TurnStop.LENGTH)


def room_for(rank: int) -> int | None:
    """The least size of adapter that vLLM makes room for and that holds `rank`, 0 for no adapters; None where there is
    none."""
    return 0 if rank == 0 else next((size for size in LORA_RANKS if size >= rank), None)


def finite(logprobs: Sequence[float | None]) -> tuple[float, ...]:
    """Log-probabilities as numbers: None (of a prompt's first token) is 0, and −∞ is −9999, as a server writes it."""
    return tuple(0.0 if p is None else -9999.0 if p == -math.inf else float(p) for p in logprobs)


class Versions:
    """Names adapters: each load of one is a new version with a name and a number of its own, never used again.

    Args:
        mark: Ends every name; a server that outlives this process must never meet one of its names again.
    """

    def __init__(self, mark: str = "") -> None:
        self._numbers, self._mark = itertools.count(1), mark

    def next(self, name: str, folder: Path, rank: int, targets: Sequence[str] = ()) -> Adapter:
        """The next version of `name`, e.g. `policy@3`, which will lie in a folder of its number below `folder`."""
        number = next(self._numbers)
        return Adapter(f"{name}@{number}{self._mark}", number, str(folder / str(number)), rank, tuple(targets))
