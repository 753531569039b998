"""Generation loop: one thread loads models and generates the sequences of all requests together (continuous batching).

Between two decode steps, sequences join in the order of their arrival and cancelled ones leave. At most `max_running`
sequences have a slot in the KV cache. A sequence of another base model waits until the running ones end.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from jobs.model_server.limits import ServerLimits
from jobs.model_server.models import ModelLoader
from jobs.model_server.protocol import ApiError, ModelSource
from jobs.model_server.tasks import TaskTurn
from jobs.model_server.text_stream import TextStream
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.device import free_cached, use_idle_cores
from rl2f_core.types import FinishReason, JsonObject

if TYPE_CHECKING:
    from rl2f_core.models.backends.hf.backend import HFBackend
    from rl2f_core.models.backends.hf.decoder import RunningSequence
    from rl2f_core.models.backends.hf.token_scores import TokenScore

FLUSH_SECONDS = 0.05
"""Minimum interval between two parts of a streamed sequence."""
THREADS_SECONDS = 30.0
"""Minimum interval between two choices of the number of CPU threads."""
STARTUP_SECONDS = 60.0
"""Minimum idle time before the first request."""
MAX_CACHED_CONVERSATIONS = 4
"""Conversations whose KV cache is kept for their next turn."""


@dataclass(frozen=True)
class Output:
    """What a sequence gained since its last output."""

    index: int
    """Choice of the request."""
    text: str
    token_ids: tuple[int, ...]
    scores: tuple[TokenScore, ...]
    prompt_scores: tuple[TokenScore, ...]
    """In the first output, if requested."""
    finish_reason: Literal["stop", "length"] | None
    """None if the sequence continues."""


Event = Output | ApiError | JsonObject | str
"""An output, the failure of a sequence, a result of an interactive task, or a progress message (empty: generating)."""


@dataclass(eq=False)
class ChoiceSequence:
    """One choice of a request."""

    model: str
    source: ModelSource
    index: int
    prompt: GenerationRequest
    sampling: SamplingParams
    text: TextStream
    emit: Callable[[Event], object]
    """Called from the loop's thread."""
    streams: bool = False
    task: TaskTurn | None = None
    """Gives the prompt, and verifies the text."""
    is_cancelled: bool = False
    is_waiting: bool = False
    """The client was informed that the sequence waits for another base model."""
    pending: RunningSequence | None = None
    sent_at: float = 0.0
    num_tokens_sent: int = 0
    num_characters_sent: int = 0

    @property
    def adapter(self) -> str | None:
        """Name of the adapter in the backend; None is the base."""
        return None if self.source.adapter is None else self.model

    def start(self, backend: HFBackend) -> bool:
        """Submit the prompt; return False if an interactive task ends without an attempt."""
        if self.task is not None:
            prompt = self.task.prepare(backend, self.adapter)
            if prompt is None:
                self.emit(Output(self.index, "", (), (), (), "stop"))
                return False
            self.prompt = replace(self.prompt, token_ids=prompt)
        (self.pending,) = backend.submit([self.prompt], self.sampling, self.adapter)
        self.emit("")
        return True

    def advance(self, now: float) -> bool:
        """Emit new output if it is due; return whether the sequence has ended."""
        pending = self.pending
        assert pending is not None
        finished = pending.generation is not None
        due = finished or (
            self.streams and now - self.sent_at >= FLUSH_SECONDS and len(pending.token_ids) > self.num_tokens_sent
        )
        if not due and not self.text.stops:
            return False
        stopped = self.text.update(pending.token_ids, is_finished=finished)
        if due or stopped:
            if self.task is not None and pending.generation is not None:
                self.task.verify(self.text.decode(pending.token_ids), pending.generation)
            is_stop = stopped or (pending.generation is not None and pending.generation.stop is FinishReason.EOS)
            self._emit(pending, ("stop" if is_stop else "length") if finished or stopped else None)
            self.sent_at = now
        return finished or stopped

    def _emit(self, pending: RunningSequence, finish_reason: Literal["stop", "length"] | None) -> None:
        first, start = self.num_tokens_sent == 0, self.num_tokens_sent
        output = Output(
            index=self.index,
            text=self.text.text[self.num_characters_sent :],
            token_ids=tuple(pending.token_ids[start:]),
            scores=tuple(pending.scores[start:]),
            prompt_scores=tuple(pending.prompt_scores) if first else (),
            finish_reason=finish_reason,
        )
        self.num_tokens_sent, self.num_characters_sent = len(pending.token_ids), len(self.text.text)
        self.emit(output)


@dataclass
class GenerationLoop:
    """Generates sequences; no other thread may use the loader while the loop runs.

    Args:
        limits: Limits of the server.
        served: Served models by name.
        on_idle: Called when the model was unloaded after the idle time.
    """

    limits: ServerLimits
    served: Mapping[str, ModelSource]
    on_idle: Callable[[], object] = lambda: None
    running: list[ChoiceSequence] = field(default_factory=list)
    waiting: list[ChoiceSequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loader = ModelLoader(self.served, self.limits.reserve_gb)
        self._arrival = threading.Condition()
        self._is_closed = False
        self._cached: list[str] = []
        """Conversations with a KV cache, the last one at the end."""
        self._max_threads, self._threads_set_at = 0, -math.inf
        self._thread = threading.Thread(target=self._run, name="generation", daemon=True)
        self._thread.start()

    @property
    def num_unfinished(self) -> int:
        """Number of running and waiting sequences."""
        return len(self.running) + len(self.waiting)

    def submit(self, sequences: Sequence[ChoiceSequence]) -> None:
        """Queue sequences. Raises `ApiError` if too many wait."""
        with self._arrival:
            if self._is_closed:
                raise ApiError("The server is shutting down.", status=503, code="shutdown")
            if self.num_unfinished + len(sequences) > self.limits.max_running + self.limits.max_waiting:
                raise ApiError(
                    "Too many requests are waiting. Try again later.",
                    status=429,
                    code="rate_limit_exceeded",
                    retry_after=1,
                )
            self.waiting += sequences
            self._arrival.notify()

    def close(self) -> None:
        """End the thread; unfinished sequences fail."""
        with self._arrival:
            self._is_closed = True
            self._arrival.notify()
        self._thread.join()

    # -- the thread --------------------------------------------------------------------------------------------
    def _run(self) -> None:
        idle = self.limits.idle_seconds
        timeout = None if idle is None else max(idle, STARTUP_SECONDS)
        while not self._is_closed:
            with self._arrival:
                has_work = self._arrival.wait_for(lambda: self.num_unfinished or self._is_closed, timeout)
            timeout = idle
            if not has_work:
                self.loader.unload()
                self.on_idle()
            for sequence in [*self.running, *self.waiting]:
                if sequence.is_cancelled:
                    self._end(sequence)
            self._admit()
            if self.running:
                self._step()
        self._fail([*self.running, *self.waiting], ApiError("The server is shutting down.", status=503))

    def _admit(self) -> None:
        """Start waiting sequences in the order of their arrival."""
        while self.waiting and len(self.running) < self.limits.max_running:
            sequence = self.waiting[0]
            try:
                if self.running and not self.loader.is_loaded(sequence.source):
                    if not sequence.is_waiting:
                        sequence.emit("Waiting for another response …")
                    sequence.is_waiting = True
                    return
                used = {running.model for running in self.running}
                backend = self.loader.load(sequence.model, sequence.source, used, sequence.emit)
                self._prepare(backend, sequence.prompt.cache_key)
                self.running.append(self.waiting.pop(0))
                if not sequence.start(backend):
                    self._end(sequence)
            except Exception as error:
                self._fail([sequence], error)

    def _prepare(self, backend: HFBackend, key: str) -> None:
        """Use the idle cores, and keep the KV cache of running, this and the most recent other conversations."""
        if not self.running and time.monotonic() - self._threads_set_at > THREADS_SECONDS:
            self._max_threads = use_idle_cores(backend.device, self._max_threads)
            self._threads_set_at = time.monotonic()
        if key:
            others = [other for other in self._cached if other != key]
            self._cached = [*others, key][-MAX_CACHED_CONVERSATIONS:]
            backend.keep_cached({*self._cached, *(running.prompt.cache_key for running in self.running)})

    def _step(self) -> None:
        """Compute one token of every running sequence."""
        backend = self.loader.backend
        assert backend is not None
        try:
            backend.step()
        except Exception as error:
            self._fail(list(self.running), error)
            backend.reset_prefix_cache()
            return
        now = time.monotonic()
        for sequence in list(self.running):
            try:
                if sequence.advance(now):
                    self._end(sequence)
            except Exception as error:
                self._fail([sequence], error)

    def _end(self, sequence: ChoiceSequence) -> None:
        """Remove a sequence and free its slot."""
        if sequence in self.running:
            self.running.remove(sequence)
            if sequence.pending is not None and self.loader.backend is not None:
                self.loader.backend.cancel([sequence.pending])
        else:
            self.waiting.remove(sequence)

    def _fail(self, sequences: Sequence[ChoiceSequence], error: Exception) -> None:
        """End sequences with an error."""
        described = ApiError.of(error)
        error.__traceback__ = None  # it refers to the tensors of the aborted step
        for sequence in sequences:
            self._end(sequence)
            sequence.emit(described)
        if described.code in ("memory", "internal_error"):
            if self.loader.backend is not None and not self.running:
                self.loader.backend.reset_prefix_cache()
            free_cached()
