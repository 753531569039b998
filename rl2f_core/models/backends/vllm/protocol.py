"""Requests to vLLM and their results, as plain values, and their form in `/v1/completions`.

The server returns *processed* logprobs: after the logit bias and the temperature, before sampling. These are the
logprobs of `Generation`, except in two cases that vLLM imposes:

- If `top_p` is below 1, they are normalized over the nucleus.
- Greedy sampling is requested as temperature 0, and every logprob is 0. vLLM takes the lowest id on ties as well.

Banned tokens get a logit bias of −100 nats before the temperature, the lowest that a server accepts. This leaves a
factor of e⁻¹⁰⁰, which is 0 in float32. A list of allowed ids would be exact, but vLLM's model runner on GPUs takes at
most 1,024 of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rl2f_core.errors import ConfigError, RL2FError, RunError, shorten
from rl2f_core.models.backends.base import Generation, SamplingParams
from rl2f_core.types import FinishReason, JsonObject

BANNED_BIAS = -100.0
MAX_LOGIT_BIAS_TOKENS = 1024
"""Tokens per request that vLLM's second model runner, its default on GPUs, can bias."""
MAX_ALTERNATIVES = 20
"""Logprobs per position that a server returns by default (`--max-logprobs`)."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts as `max_lora_rank`."""
_SEED_BITS = 63
_NEUTRAL: JsonObject = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,
}


@dataclass(frozen=True, slots=True)
class Adapter:
    """One version of one adapter. vLLM caches by adapter name, so every version has its own name."""

    name: str
    folder: str
    rank: int
    targets: tuple[str, ...] = ()
    """Last name components of the adapted modules, e.g. `q_proj`."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """Prompt token ids, vLLM's sampling parameters and an adapter; None is the base model."""

    tokens: tuple[int, ...]
    params: JsonObject
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """Sampled tokens with their logprobs; for a scoring request, the prompt tokens with theirs."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    alternatives: Mapping[int, float] = field(default_factory=dict)
    """Logprobs by token id at the first position, of as many tokens as the request asked for."""


def generation_params(sampling: SamplingParams, seed: int, eos_token_id: int, banned: Sequence[int]) -> JsonObject:
    """Return vLLM's sampling parameters for one attempt.

    All parameters for which a server could have another default are set. Generation stops at the end token of the
    message, which is part of the output. `ignore_eos` disables the model's own EOS token; it is banned if it differs.
    """
    return {
        "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
        "top_p": 1.0 if sampling.is_greedy else sampling.top_p,
        **_NEUTRAL,
        "seed": seed & ((1 << _SEED_BITS) - 1),
        "max_tokens": sampling.max_new_tokens,
        "stop_token_ids": [eos_token_id],
        "logprobs": 0,
        "logit_bias": {str(token): BANNED_BIAS for token in banned},
    }


def choice_params(params: JsonObject, choices: Sequence[Sequence[int]]) -> JsonObject:
    """Return vLLM's parameters for one token among the choices, with the logprobs of all, normalized over them.

    More than `MAX_ALTERNATIVES` choices are sampled in the same way, without the logprobs of the others.

    Raises `RunError` if a choice has several tokens.
    """
    if any(len(choice) != 1 for choice in choices):
        raise RunError("With vLLM a label must be one token of the tokenizer.", value=choices, fix="Set backend: hf.")
    others = {key: value for key, value in params.items() if key != "logit_bias"}
    alternatives = len(choices) if len(choices) <= MAX_ALTERNATIVES else 0
    allowed = sorted(choice[0] for choice in choices)
    return {**others, "allowed_token_ids": allowed, "max_tokens": 1, "logprobs": alternatives}


def scoring_params() -> JsonObject:
    """Return vLLM's parameters for prompt logprobs; the one new token is discarded."""
    return {"temperature": 0.0, "top_p": 1.0, **_NEUTRAL, "max_tokens": 1, "prompt_logprobs": 0}


def request_body(request: EngineRequest, base: str) -> JsonObject:
    """Return the body of `/v1/completions`; `base` names the base model."""
    name = base if request.adapter is None else request.adapter.name
    return {"model": name, "prompt": list(request.tokens), "add_special_tokens": False, "return_token_ids": True,
            "return_tokens_as_token_ids": True, **request.params}  # fmt: skip


def parse_completion(request: EngineRequest, body: JsonObject) -> EngineOutput:
    """Parse a response of `/v1/completions`.

    Raises `ConfigError` if the server is too old to return token ids, `RunError` for any other unexpected response.
    """
    try:
        choice = body["choices"][0]
        if "prompt_logprobs" in request.params:
            entries = zip(request.tokens, choice["prompt_logprobs"], strict=True)
            logprobs = finite_logprobs([None if p is None else float(p[str(t)]["logprob"]) for t, p in entries])
            return EngineOutput(request.tokens, logprobs)
        if choice.get("token_ids") is None:
            raise ConfigError("The server returns no token ids.", fix="Use vLLM 0.32, or any version above 0.10.")
        tokens = tuple(map(int, choice["token_ids"]))
        logprobs = finite_logprobs(choice["logprobs"]["token_logprobs"])
        alternatives = _alternatives(choice["logprobs"]) if request.params["logprobs"] else {}
    except RL2FError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"The response of the vLLM server cannot be parsed ({type(error).__name__}: {error}).",
                       value=shorten(json.dumps(body, default=str), 200)) from error  # fmt: skip
    if len(tokens) != len(logprobs):
        raise RunError("The vLLM server returned different numbers of logprobs and tokens.",
                       value=(len(logprobs), len(tokens)))  # fmt: skip
    return EngineOutput(tokens, logprobs, alternatives)


def _alternatives(logprobs: JsonObject) -> dict[int, float]:
    """Return the logprobs of the most probable first tokens by id; the server names them `token_id:7`."""
    first = logprobs["top_logprobs"][0]
    values = finite_logprobs(list(first.values()))
    return {int(name.removeprefix("token_id:")): value for name, value in zip(first, values, strict=True)}


def to_generation(
    output: EngineOutput, sampling: SamplingParams, eos_token_id: int, choices: Sequence[Sequence[int]] = ()
) -> Generation:
    """Return the attempt of an output, or its choice; logprobs that rounding left above 0 become 0.

    Raises `RunError` if a logprob is NaN.
    """
    if any(math.isnan(logprob) for logprob in output.logprobs):
        raise RunError("vLLM returned NaN as a logprob.", value=output.logprobs,
                       fix="Set model.dtype to bfloat16 or float32; float16 may overflow.")  # fmt: skip
    logprobs = tuple(0.0 if sampling.is_greedy else min(0.0, logprob) for logprob in output.logprobs)
    ended = bool(output.tokens) and (output.tokens[-1] == eos_token_id or output.tokens in choices)
    finish = FinishReason.EOS if ended else FinishReason.LENGTH
    known = bool(choices) and not sampling.is_greedy and all(choice[0] in output.alternatives for choice in choices)
    chosen = tuple(min(0.0, output.alternatives[choice[0]]) for choice in choices) if known else ()
    return Generation(output.tokens, logprobs, finish, chosen)


def lora_rank_bucket(rank: int) -> int | None:
    """Return the smallest `max_lora_rank` for `rank`; 0 for 0, None if too large."""
    return 0 if rank == 0 else next((size for size in LORA_RANKS if size >= rank), None)


def finite_logprobs(logprobs: Sequence[float | None]) -> tuple[float, ...]:
    """Replace None (first prompt token) by 0 and −∞ by −9999, like vLLM."""
    return tuple(0.0 if p is None else -9999.0 if p == -math.inf else float(p) for p in logprobs)
