"""Backend interface: prompts of token ids in, sampled tokens with logprobs out.

A prompt holds all tokens of its sequence. A backend that reuses the KV cache between turns finds it by the prompt's
`cache_key` and compares the tokens, so it never continues another prompt. Each prompt has its own seed, so its result
does not depend on the batch.

`generate` runs a batch to its end. With a `GenerationSession`, prompts join while others are generated; the default
one calls `generate`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rl2f_core.config.fields import ComponentConfig
from rl2f_core.config.model import ModelConfig
from rl2f_core.config.schedules import GREEDY_LIMIT
from rl2f_core.errors import AdapterError, RunError
from rl2f_core.models.backends import concurrency
from rl2f_core.models.tokenizer import ChatTokenizer
from rl2f_core.types import FinishReason

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt with its seed."""

    token_ids: tuple[int, ...]
    seed: int
    cache_key: str = ""
    """Names the dialogue, so that its next turn reuses the KV cache. Empty: no later prompt continues this one."""
    choices: tuple[tuple[int, ...], ...] = ()
    """Completions to choose from, none a prefix of another. Each token is sampled among those that continue a choice,
    with renormalized probabilities, and a whole choice ends the completion. Empty: any text."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the most likely one, on ties the lowest id, with logprob 0."""
        return self.temperature <= GREEDY_LIMIT


@dataclass(frozen=True, slots=True)
class Generation:
    """A sampled completion; logprobs in nats, at the sampling temperature, over the allowed tokens."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: FinishReason
    choice_logprobs: tuple[float, ...] = ()
    """Logprob of each choice of the prompt, if each has one token and none is greedy; otherwise empty."""


def allowed_next(choices: Sequence[Sequence[int]], sampled: Sequence[int]) -> list[int]:
    """Return the tokens that continue a choice after the sampled tokens, sorted."""
    n = len(sampled)
    return sorted({choice[n] for choice in choices if len(choice) > n and tuple(choice[:n]) == tuple(sampled)})


@dataclass(eq=False)
class PendingGeneration:
    """A submitted prompt."""

    prompt: GenerationRequest
    sampling: SamplingParams
    adapter: str | None
    generation: Generation | None = None
    """The completion, once it is finished."""


class GenerationSession:
    """Prompts that are generated together; more can be submitted at any time.

    This class uses static batching: each step generates all prompts with the same adapter and sampling parameters.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._waiting: list[PendingGeneration] = []
        self._waiters: list[tuple[Sequence[PendingGeneration], threading.Event]] = []

    def submit(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None = None
    ) -> list[PendingGeneration]:
        """Submit prompts. Raises the errors of `Backend.generate`."""
        pending = [PendingGeneration(prompt, sampling, adapter) for prompt in prompts]
        self._waiting += pending
        return pending

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` has anything to do."""
        return self._has_waiting() or bool(self._waiters)

    def step(self) -> None:
        """Generate for a moment, or until at least one more prompt is finished."""
        if self._has_waiting():
            self._run_batch()
        done = [waiter for waiter in self._waiters if all(item.generation is not None for item in waiter[0])]
        self._waiters = [waiter for waiter in self._waiters if waiter not in done]
        for _, event in done:
            event.set()

    def _has_waiting(self) -> bool:
        return bool(self._waiting)

    def _run_batch(self) -> None:
        group = (self._waiting[0].sampling, self._waiting[0].adapter)
        batch = [item for item in self._waiting if (item.sampling, item.adapter) == group]
        self._waiting = [item for item in self._waiting if (item.sampling, item.adapter) != group]
        generations = self.backend.generate([item.prompt for item in batch], *group)
        for item, generation in zip(batch, generations, strict=True):
            item.generation = generation

    def release_cache(self, keys: Iterable[str]) -> None:
        """Release the KV cache of finished dialogues."""

    def wait(self, pending: Sequence[PendingGeneration]) -> list[Generation]:
        """Wait while another thread steps the session. Raises `RunError` if the session ends first."""
        event = threading.Event()
        self._waiters.append((pending, event))
        with concurrency.lock_released(event):
            event.wait()
        generations = finished_generations(pending)
        if len(generations) < len(pending):
            raise RunError("The session ended before the generation was finished.")
        return generations

    def close(self) -> None:
        """Abort unfinished prompts."""
        self._waiting.clear()
        for _, event in self._waiters:
            event.set()


def finished_generations(pending: Iterable[PendingGeneration]) -> list[Generation]:
    """Return the finished generations, in order."""
    return [item.generation for item in pending if item.generation is not None]


class Backend(ABC):
    """Generates and scores with one base model and any number of adapters."""

    Config: ClassVar[type[ComponentConfig]]
    config: ComponentConfig
    tokenizer: ChatTokenizer
    max_model_len: int
    """Maximum number of tokens of a prompt and its completion."""
    folder: Path | None = None
    """Folder of the base weights; None if the backend has no weights, and neither `device` nor `dtype`."""
    device: torch.device
    dtype: torch.dtype
    loads_full_weights: ClassVar[bool] = False
    """Whether `load_adapter` also loads checkpoints with all weights (full fine-tuning)."""
    preferred_batch_size: int = 64
    """Batch size below which one more sequence is almost free."""
    seconds_generating: float = 0.0
    """Seconds in which rollouts in this process generated."""
    _open: GenerationSession | None = None
    _gathered: GenerationSession | None = None

    def __init__(self, config: ComponentConfig, model: ModelConfig) -> None:
        self.config = config
        self.model_config = model

    @property
    def decode_path(self) -> str:
        """How decode steps are computed, if the backend chooses between several ways; otherwise empty."""
        return ""

    @abstractmethod
    def generate(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None = None
    ) -> list[Generation]:
        """Sample one completion per prompt, in order. `adapter` None is the base model."""

    @contextmanager
    def session(self) -> Iterator[GenerationSession]:
        """Open a session for the duration of the block."""
        session, before = self._session(), self._open
        self._open = session
        try:
            yield session
        finally:
            self._open = before
            session.close()

    def _session(self) -> GenerationSession:
        return GenerationSession(self)

    def generate_concurrent(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None = None
    ) -> list[Generation]:
        """Generate as `generate`, together with the prompts of other cooperative threads.

        The prompts join the open session; without one, those of all threads form one batch.
        """
        if not prompts or not concurrency.in_cooperative_thread():
            return self.generate(prompts, sampling, adapter)
        if self._open is not None:
            return self._open.wait(self._open.submit(prompts, sampling, adapter))
        session = self._gathered = self._gathered or GenerationSession(self)
        pending = session.submit(prompts, sampling, adapter)
        with concurrency.lock_released():
            pass  # let the other threads submit their prompts
        while session.has_unfinished and any(item.generation is None for item in pending):
            with suppress(Exception):
                session.step()
        generations = finished_generations(pending)
        if len(generations) == len(pending):
            return generations
        return self.generate(prompts, sampling, adapter)  # the batch failed

    def check_request(self, prompts: Sequence[GenerationRequest], sampling: SamplingParams) -> None:
        """Raise `RunError` if a prompt and its completion exceed `max_model_len`."""
        longest = max((len(p.token_ids) for p in prompts), default=0) + sampling.max_new_tokens
        if longest > self.max_model_len:
            raise RunError(
                "A prompt and its answer do not fit the model's context.",
                value=longest,
                fix=f"Keep dialogues under {self.max_model_len} tokens.",
            )

    @abstractmethod
    def score(self, sequences: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[float]]:
        """Return log p of each token given the tokens before it; the first entry is 0.

        In nats, at temperature 1, over the whole vocabulary, because prompts contain banned tokens.
        """

    @abstractmethod
    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter in PEFT's format, replacing an earlier one with this name.

        Raises `AdapterError` if it does not fit the base model.
        """

    def copy_adapter(self, name: str, tensors: Mapping[str, torch.Tensor], scale: float | None) -> bool:
        """Load an adapter of the same base from another model's tensors; False if only files can be loaded.

        Args:
            name: Name of the adapter; an earlier one with this name is replaced.
            tensors: Weights in float32 by their names in a checkpoint, copied before this returns.
            scale: alpha / rank of a LoRA adapter; None if `tensors` has all weights.
        """
        return False

    @abstractmethod
    def reset_prefix_cache(self) -> None:
        """Drop the KV cache of earlier prompts."""

    def release_memory(self) -> None:  # noqa: B027
        """Release GPU memory, if supported; the next call reacquires it."""


def check_adapter(name: str | None, loaded: Iterable[str]) -> None:
    """Raise `AdapterError` unless the adapter is loaded; None is the base model."""
    loaded = set(loaded)
    if name is not None and name not in loaded:
        raise AdapterError("No adapter of this name is loaded.", value=name, known=sorted(loaded))
