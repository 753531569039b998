"""The contract of a backend: prompts of tokens in, sampled tokens with their log-probabilities out.

The prompt of every call is the whole dialogue so far; a backend that keeps state between turns finds it by the
prompt's `key` and by comparing tokens, so the caller can never be given an answer to another prompt.
Chance comes from each prompt's own seed, so a dialogue does not depend on the company it is played in.

`generate` answers a batch and returns when all of it is done.  A `Session` lets prompts join while others are under way
and tells of each when it is done; where a backend has none of its own, it is made of `generate`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rl2f_core import baton
from rl2f_core.config import BaseConfig, ModelConfig
from rl2f_core.errors import RunError
from rl2f_core.rollout.tokenizer import ChatTokenizer
from rl2f_core.types import TurnStop


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request for a student turn."""

    token_ids: tuple[int, ...]
    seed: int
    key: str = ""
    """Names the dialogue, so that what is known of its earlier turns can be used again. Empty: nothing goes on from it,
    and what is kept of other dialogues stays."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled turn; `logprobs` in nats at the sampling temperature, over the allowed tokens."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: TurnStop


@dataclass(eq=False)
class Ticket:
    """A prompt under way."""

    prompt: Prompt
    sampling: Sampling
    adapter: str | None
    generation: Generation | None = None
    """The turn, once it is done."""


class Session:
    """Prompts under way at one backend: others join at any time, and every one is answered when it is done.

    This one answers in lock-step: all that wait for the same adapter with the same sampling are generated together.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._waiting: list[Ticket] = []
        self._listening: list[tuple[Sequence[Ticket], threading.Event]] = []

    def submit(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None = None) -> list[Ticket]:
        """Let prompts join; one ticket each, in order. Raises what `Backend.generate` raises of a prompt."""
        tickets = [Ticket(prompt, sampling, adapter) for prompt in prompts]
        self._waiting += tickets
        return tickets

    @property
    def busy(self) -> bool:
        """There is something for `step` to do, whoever it is for."""
        return self._under_way() or bool(self._listening)

    def step(self) -> None:
        """Go on with what is under way, as far as it takes for one ticket more or for a moment."""
        if self._under_way():
            self._advance()
        done = [pair for pair in self._listening if all(ticket.generation is not None for ticket in pair[0])]
        self._listening = [pair for pair in self._listening if pair not in done]
        for _, event in done:
            event.set()

    def _under_way(self) -> bool:
        return bool(self._waiting)

    def _advance(self) -> None:
        first = self._waiting[0]
        kind = (first.sampling, first.adapter)
        batch = [ticket for ticket in self._waiting if (ticket.sampling, ticket.adapter) == kind]
        self._waiting = [ticket for ticket in self._waiting if (ticket.sampling, ticket.adapter) != kind]
        said = self.backend.generate([ticket.prompt for ticket in batch], *kind)
        for ticket, generation in zip(batch, said, strict=True):
            ticket.generation = generation

    def leave(self, keys: Iterable[str]) -> None:
        """These dialogues have ended: nothing goes on from what is kept of them."""

    def wait(self, tickets: Sequence[Ticket]) -> list[Generation]:
        """The turns of some tickets, once another thread's steps have made them. Raises `RunError` where none will."""
        event = threading.Event()
        self._listening.append((tickets, event))
        with baton.waiting(event):
            event.wait()
        said = [ticket.generation for ticket in tickets if ticket.generation is not None]
        if len(said) < len(tickets):
            raise RunError("The session ended before the turn was done.")
        return said

    def close(self) -> None:
        """Give up what is under way."""
        self._waiting.clear()
        for _, event in self._listening:
            event.set()


class Backend(ABC):
    """Generates and scores with one base model and any number of named adapters."""

    Config: ClassVar[type[BaseConfig]]
    tokenizer: ChatTokenizer
    context_limit: int
    """Tokens the model can attend to."""
    wide: int = 64
    """Turns that had better be under way together: with fewer, one more costs little time."""
    _open: Session | None = None
    _gathered: Session | None = None

    def __init__(self, config: Any, model: ModelConfig) -> None:
        self.config = config
        self.model_config = model

    @abstractmethod
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None = None) -> list[Generation]:
        """Sample one turn for each prompt, in order. `adapter` None is the base model."""

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session that is open for as long as the block is."""
        made, before = self._session(), self._open
        self._open = made
        try:
            yield made
        finally:
            self._open = before
            made.close()

    def _session(self) -> Session:
        return Session(self)

    def answer(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None = None) -> list[Generation]:
        """As `generate`, for one who may be one of many that ask at the same time, each in a thread of its own.

        They are answered together: by the open session, beside what is under way there, or else in one batch.
        """
        if not prompts or not baton.aside():
            return self.generate(prompts, sampling, adapter)
        if self._open is not None:
            return self._open.wait(self._open.submit(prompts, sampling, adapter))
        gathered = self._gathered = self._gathered or Session(self)
        tickets = gathered.submit(prompts, sampling, adapter)
        with baton.waiting():
            pass  # whoever is about to ask asks now
        while gathered.busy and any(ticket.generation is None for ticket in tickets):
            with suppress(Exception):
                gathered.step()
        said = [ticket.generation for ticket in tickets if ticket.generation is not None]
        return said if len(said) == len(tickets) else self.generate(prompts, sampling, adapter)  # the batch broke

    @abstractmethod
    def score(self, sequences: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[float]]:
        """log p of every token given those before it, the first entry of each 0: in nats, at temperature 1, over the
        whole vocabulary (banned tokens stand in prompts)."""

    @abstractmethod
    def load_adapter(self, name: str, folder: Path) -> None:
        """Read a LoRA adapter in PEFT's format under a name, in place of an earlier one of that name.

        Raises `AdapterError` where it does not fit the base model.
        """

    @abstractmethod
    def forget(self) -> None:
        """Drop what is kept between turns."""

    def rest(self) -> None:  # noqa: B027
        """The learner's turn: give memory back that both need; the next call takes it again. By default nothing."""
