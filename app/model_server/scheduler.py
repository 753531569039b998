"""Scheduler: one thread that generates the sequences of all requests together (continuous batching).

Between two decode steps, sequences join in the order of their arrival and cancelled ones leave. At most `max_running`
sequences have a slot in the KV cache.
"""

from __future__ import annotations

import math
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from app.model_server.protocol import ApiError
from app.model_server.text_stream import TextStream
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.device import use_idle_cores
from rl2f_core.types import FinishReason

if TYPE_CHECKING:
    from rl2f_core.models.backends.hf.backend import HFBackend
    from rl2f_core.models.backends.hf.decoder import RunningSequence
    from rl2f_core.models.backends.hf.token_scores import TokenScore

FLUSH_SECONDS = 0.05
"""Minimum interval between two parts of a streamed sequence."""
THREADS_SECONDS = 30.0
"""Minimum interval between two choices of the number of CPU threads."""


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


@dataclass(eq=False)
class ChoiceSequence:
    """One choice of a request."""

    index: int
    prompt: GenerationRequest
    sampling: SamplingParams
    adapter: str | None
    text: TextStream
    emit: Callable[[Output | ApiError], object]
    """Called from the scheduler's thread."""
    streams: bool = False
    is_cancelled: bool = False
    pending: RunningSequence | None = None
    sent_at: float = 0.0
    num_tokens_sent: int = 0
    num_characters_sent: int = 0

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
class Scheduler:
    """Generates sequences with one backend, which no other thread may use while the scheduler runs."""

    backend: HFBackend
    max_running: int = 32
    """Maximum number of sequences in one decode step."""
    max_waiting: int = 256
    """Maximum number of sequences that wait for a slot."""
    running: list[ChoiceSequence] = field(default_factory=list)
    waiting: deque[ChoiceSequence] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._arrived: queue.SimpleQueue[ChoiceSequence | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_unfinished = 0
        self._is_closed = False
        self._max_threads, self._threads_set_at = 0, -math.inf
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    @property
    def num_unfinished(self) -> int:
        """Number of running and waiting sequences."""
        return self._num_unfinished

    def submit(self, sequences: Sequence[ChoiceSequence]) -> None:
        """Queue sequences. Raises `ApiError` if too many wait."""
        with self._lock:
            if self._is_closed:
                raise ApiError("The server is shutting down.", status=503, code="shutdown")
            if self._num_unfinished + len(sequences) > self.max_running + self.max_waiting:
                raise ApiError(
                    "Too many requests are waiting. Try again later.",
                    status=429,
                    code="rate_limit_exceeded",
                    retry_after=1,
                )
            self._num_unfinished += len(sequences)
            for sequence in sequences:
                self._arrived.put(sequence)

    def close(self) -> None:
        """End the thread; unfinished sequences fail."""
        with self._lock:
            self._is_closed = True
        self._arrived.put(None)
        self._thread.join()

    # -- the thread --------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while not self._is_closed:
            self._receive()
            for sequence in [each for each in [*self.running, *self.waiting] if each.is_cancelled]:
                self._end(sequence)
            while self.waiting and len(self.running) < self.max_running:
                self._start(self.waiting.popleft())
            if self.running:
                self._step()
        self._fail([*self.running, *self.waiting], ApiError("The server is shutting down.", status=503))

    def _receive(self) -> None:
        """Queue all arrived sequences; without work, wait for one."""
        block = not self.running and not self.waiting
        while True:
            try:
                sequence = self._arrived.get(block)
            except queue.Empty:
                return
            if sequence is None:
                return
            self.waiting.append(sequence)
            block = False

    def _start(self, sequence: ChoiceSequence) -> None:
        if not self.running and time.monotonic() - self._threads_set_at > THREADS_SECONDS:
            self._max_threads = use_idle_cores(self.backend.device, self._max_threads)
            self._threads_set_at = time.monotonic()
        self.running.append(sequence)
        try:
            (sequence.pending,) = self.backend.submit([sequence.prompt], sequence.sampling, sequence.adapter)
        except Exception as error:
            self._fail([sequence], error)

    def _step(self) -> None:
        """Compute one token of every running sequence."""
        try:
            self.backend.step()
        except Exception as error:
            self.backend.reset_prefix_cache()
            self._fail(list(self.running), error)
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
            if sequence.pending is not None:
                self.backend.cancel([sequence.pending])
        else:
            self.waiting.remove(sequence)
        with self._lock:
            self._num_unfinished -= 1

    def _fail(self, sequences: Sequence[ChoiceSequence], error: Exception) -> None:
        """End sequences with an error."""
        if not isinstance(error, ApiError):
            traceback.print_exception(error)
            error = ApiError("The model failed; the server's log has the details.", status=500, code="internal_error")
        for sequence in sequences:
            self._end(sequence)
            sequence.emit(error)
