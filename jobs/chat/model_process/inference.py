"""Inference of the model process: continuous batching over one base model with its adapters."""

from __future__ import annotations

import queue
import random
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError
from rl2f_core.dialogue.rollout.engine import turn_seed

from jobs.chat.model_process import memory
from jobs.chat.model_process.protocol import (
    MAX_CHECKPOINTS,
    ChatCompletionRequest,
    Choice,
    Completion,
    ErrorBody,
    Logprobs,
    ModelRequest,
    ModelSource,
    OutputMessage,
    Stats,
    TaskTurnRequest,
    TokenLogprob,
    TurnResult,
    Usage,
)
from rl2f_core.config.model import ModelConfig
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.rollout.dialogue_builder import build_turn, stop_reason
from rl2f_core.dialogue.rollout.prompting import load_reprompt_template
from rl2f_core.dialogue.teachers import human
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest
from rl2f_core.environments.base import Environment
from rl2f_core.errors import AdapterError, ModelError, RL2FError, RunError
from rl2f_core.models.backends.base import Generation, GenerationRequest, SamplingParams
from rl2f_core.models.device import free_cached, out_of_memory, use_idle_cores
from rl2f_core.models.renderer import ChatRenderer
from rl2f_core.types import FinishReason, JsonObject, StopReason, Task, Turn

if TYPE_CHECKING:
    from rl2f_core.models.backends.hf.decoder import RunningSequence
    from rl2f_core.models.backends.hf.streaming import StreamBackend
    from rl2f_core.models.tokenizer import ChatTokenizer

FLUSH_SECONDS = 0.05
"""Minimum interval of the chunks of one response."""
STARTUP_SECONDS = 60.0
"""Minimum wait for the first request."""
MAX_ADAPTERS = 8
"""Maximum number of loaded adapters that no running request uses."""
MAX_CACHED_CONVERSATIONS = MAX_CHECKPOINTS
"""Conversations whose KV cache is kept for their next turn."""

Event = Completion | ErrorBody | str | None
"""A chunk, the failure of the request, a progress message, or the end."""


class ContextOverflowError(RunError):
    """A conversation and its response exceed the context of the model."""


@dataclass(eq=False)
class Job:
    """One request, from its arrival to its last event."""

    request: ModelRequest
    source: ModelSource
    emit: Callable[[Event], object]
    """Called from the inference thread."""
    is_cancelled: bool = False
    is_waiting: bool = False
    """The client was informed that the job waits for another base model."""
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    task: InteractiveTask | None = None
    pending: RunningSequence | None = None
    """The submitted prompt."""
    started: float = 0.0
    sent_at: float = 0.0
    num_sent: int = 0
    """Tokens in the chunks so far."""
    text: str = ""
    """Text in the chunks so far."""
    stats: Stats = field(default_factory=lambda: Stats(prompt_tokens=0))

    def cancel(self) -> None:
        """Cancel the request before the next step."""
        self.is_cancelled = True

    def emit_chunk(
        self, choice: Choice | None = None, *, usage: Usage | None = None, task: TurnResult | None = None
    ) -> None:
        """Emit one chunk of the response."""
        chunk = Completion(id=self.id, created=self.created, model=self.request.model, usage=usage, task=task)
        if choice is not None:
            chunk.choices, chunk.stats = [choice], self.stats.model_copy()
        self.emit(chunk)

    def start(self, pending: RunningSequence) -> None:
        """Emit the first chunk, which has the role and no text."""
        self.pending = pending
        self.stats.prompt_tokens = len(pending.prompt.token_ids)
        self.started = time.perf_counter()
        self.emit_chunk(Choice(delta=OutputMessage(role="assistant")))

    def advance(self, tokenizer: ChatTokenizer, now: float) -> bool:
        """Emit what was generated since the last chunk, if `FLUSH_SECONDS` passed; returns whether the job ended."""
        pending = self.pending
        if pending is None or not pending.token_ids:
            return False
        if pending.generation is None and self.stats.first_token_seconds is not None:
            if now - self.sent_at < FLUSH_SECONDS or len(pending.token_ids) == self.num_sent:
                return False
        self.stats.seconds = now - self.started
        if self.stats.first_token_seconds is None:
            self.stats.first_token_seconds = self.stats.seconds
        self._emit_tokens(pending, tokenizer, now)
        return pending.generation is not None

    def _emit_tokens(self, pending: RunningSequence, tokenizer: ChatTokenizer, now: float) -> None:
        generation = pending.generation
        token_ids, logprobs = pending.token_ids[self.num_sent :], pending.logprobs[self.num_sent :]
        whole = text = tokenizer.decode(pending.token_ids)
        if generation is None:
            text = text.rstrip("\ufffd")  # the rest of the character may follow
        added = text[len(self.text) :] if text.startswith(self.text) else ""
        choice = Choice(delta=OutputMessage(content=added))
        if self.request.return_token_ids:
            choice.token_ids = list(token_ids)
        if self.request.logprobs:
            content = [_token_logprob(tokenizer, *pair) for pair in zip(token_ids, logprobs, strict=True)]
            choice.logprobs = Logprobs(content=content)
        self.text, self.num_sent, self.sent_at = self.text + added, len(pending.token_ids), now
        if generation is None:
            self.emit_chunk(choice)
            return
        choice.finish_reason = "stop" if generation.stop == FinishReason.EOS else "length"
        prompt_tokens, sampled = self.stats.prompt_tokens, self.num_sent
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=sampled, total_tokens=prompt_tokens + sampled)
        result = self.task.verify(whole, generation) if self.task is not None else None
        self.emit_chunk(choice, usage=usage, task=result)


def _token_logprob(tokenizer: ChatTokenizer, token_id: int, logprob: float) -> TokenLogprob:
    text = tokenizer.decode([token_id])
    return TokenLogprob(token=text, logprob=round(logprob, 5), bytes=list(text.encode()))


class InferenceEngine:
    """Generates all requests for one base model together, in the thread that calls `run`.

    A request for another base model waits until the running requests end.

    Args:
        reserve_bytes: Memory that must stay free when a model is loaded.
    """

    def __init__(self, reserve_bytes: int = 0) -> None:
        self.reserve_bytes = reserve_bytes
        self.arrived: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self._backend: StreamBackend | None = None
        self.loads = 0
        """Number of base model loads."""
        self.adapter_loads = 0
        self._source: ModelSource | None = None
        """The loaded base model."""
        self._adapter_folders: dict[str, str] = {}
        self._cached: list[str] = []
        self._max_threads = 0

    @property
    def backend(self) -> StreamBackend:
        """The loaded base model; only valid after `_load_base`."""
        assert self._backend is not None
        return self._backend

    def state(self) -> JsonObject:
        """Return the loaded models."""
        backend, source = self._backend, self._source
        return {
            "model": source and source.base,
            "device": backend and str(backend.device),
            "adapters": sorted(self._adapter_folders),
            "loads": self.loads,
            "adapter_loads": self.adapter_loads,
            "context_limit": backend and backend.max_model_len,
        }

    def _is_loaded(self, source: ModelSource) -> bool:
        return self._source is not None and self._source.base_key == source.base_key

    # -- the loop ----------------------------------------------------------------------------------------------
    def run(self, idle_seconds: float) -> None:
        """Process jobs; return after `idle_seconds` without one."""
        timeout = max(idle_seconds, STARTUP_SECONDS)
        while self.running or self.waiting or self._receive(timeout):
            self._admit()
            self._step()
            timeout = idle_seconds

    def _receive(self, timeout: float | None = None) -> bool:
        """Move one arrived job to the waiting ones; False if there is none."""
        try:
            self.waiting.append(self.arrived.get(timeout is not None, timeout))
        except queue.Empty:
            return False
        return True

    def _admit(self) -> None:
        """Start waiting jobs in the order of their arrival."""
        while True:
            while self._receive():
                pass
            if not self.waiting:
                return
            job = self.waiting[0]
            if not job.is_cancelled and self.running and not self._is_loaded(job.source):
                if not job.is_waiting:
                    job.is_waiting = True
                    job.emit("Waiting for another response …")
                return
            self.waiting.popleft()
            if not job.is_cancelled:
                try:
                    self._start(job)
                except Exception as error:
                    self._fail([job], error)

    def _step(self) -> None:
        """Sample one token of every running job."""
        for job in [job for job in self.running if job.is_cancelled]:
            self._end(job)
        if not self.running:
            return
        try:
            self.backend.step()
        except Exception as error:
            failed, self.running = self.running, []
            self.backend.reset_prefix_cache()
            self._fail(failed, error)
            return
        now = time.perf_counter()
        for job in list(self.running):
            try:
                if job.advance(self.backend.tokenizer, now):
                    self._end(job)
            except Exception as error:
                self._fail([job], error)

    def _end(self, job: Job) -> None:
        if job in self.running:
            self.running.remove(job)
            if job.pending is not None:
                self.backend.cancel([job.pending])
        job.emit(None)

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        """End jobs with an error."""
        body = describe_failure(error)
        if body.code == "bug":
            traceback.print_exc()
        error.__traceback__ = None  # it refers to the tensors of the aborted step
        for job in jobs:
            job.emit(body)
            self._end(job)
        if body.code in ("memory", "bug"):
            if self._backend is not None and not self.running:
                self._backend.reset_prefix_cache()
            free_cached()

    # -- loading -----------------------------------------------------------------------------------------------
    def _load(self, job: Job) -> None:
        """Load the base model and the adapter of a job unless they are loaded."""
        source, name = job.source, job.request.model
        if not self._is_loaded(source):
            job.emit(f"Loading {source.base} …")
            self._load_base(source)
        if source.adapter is None:
            return
        if self._adapter_folders.get(name) != source.adapter:
            job.emit(f"Loading {name.partition('#')[0]} …")
            self.backend.load_adapter(name, Path(source.adapter))
            self.adapter_loads += 1
        self._adapter_folders.pop(name, None)
        self._adapter_folders[name] = source.adapter  # newest last
        used = {name, *(running.request.model for running in self.running)}
        surplus = max(0, len(self._adapter_folders) - MAX_ADAPTERS)
        for unused in [other for other in self._adapter_folders if other not in used][:surplus]:
            self.backend.drop_adapter(unused)
            del self._adapter_folders[unused]

    def _load_base(self, source: ModelSource) -> None:
        from rl2f_core.models.device import resolve_device
        from rl2f_core.models.store.store import get_model

        self.unload()
        folder = get_model(source.base).path
        device, dtype = resolve_device(source.device, source.dtype)
        memory.ensure_memory(folder, source.base, device.type, str(dtype).removeprefix("torch."), self.reserve_bytes)
        from rl2f_core.models.backends.hf.streaming import StreamBackend

        self._backend = StreamBackend(ModelConfig(name=source.base, dtype=source.dtype, device=source.device))
        self._source = source
        self.loads += 1

    def unload(self) -> None:
        """Free the memory of the model."""
        backend, self._backend, self._source = self._backend, None, None
        self._adapter_folders, self._cached = {}, []
        if backend is not None:
            backend.adapters.clear()
            del backend
            free_cached()

    # -- starting ----------------------------------------------------------------------------------------------
    def _start(self, job: Job) -> None:
        """Load the models of a job and submit its prompt; a task turn may end without one."""
        self._load(job)
        request = job.request
        seed = random.getrandbits(31) if request.seed is None else request.seed
        tokens: Sequence[int]
        if isinstance(request, ChatCompletionRequest):
            tokens = self._encode_conversation(request)
        else:
            job.task = InteractiveTask(request, seed, self.backend)
            ended = job.task.add_hint(job)
            tokens = () if ended else job.task.prompt()
            if not ended and len(tokens) > job.task.max_prompt_tokens():
                ended = StopReason.CONTEXT_FULL
            if ended:
                job.emit_chunk(task=TurnResult(ended=ended))
                self._end(job)
                return
            seed = turn_seed(seed, len(job.task.turns))
        if len(tokens) + request.max_tokens > self.backend.max_model_len:
            raise ContextOverflowError(
                f"The conversation has {len(tokens)} tokens; with {request.max_tokens} for the response that is more "
                f"than the {self.backend.max_model_len} of the model's context.",
                fix="Start a new chat, shorten a message, or allow fewer new tokens.",
            )
        if not self.running:
            self._max_threads = use_idle_cores(self.backend.device, self._max_threads)
        key = request.prompt_cache_key
        self._keep_cache(key)
        sampling = SamplingParams(request.max_tokens, request.temperature, request.top_p)
        adapter = request.model if job.source.adapter is not None else None
        (pending,) = self.backend.submit([GenerationRequest(tuple(tokens), seed, key)], sampling, adapter)
        self.running.append(job)
        job.start(pending)

    def _encode_conversation(self, request: ChatCompletionRequest) -> list[int]:
        """Return the prompt tokens of user, assistant, user …"""
        head, *rest = request.messages
        system, messages = (head.content, rest) if head.role == "system" else ("", list(request.messages))
        roles = [message.role for message in messages]
        if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
            raise RunError("A conversation alternates between user and assistant and ends with the user.", value=roles)
        renderer = ChatRenderer(self.backend.tokenizer, system)
        tokens = list(renderer.initial_prompt(messages[0].content))
        for response, user in zip(messages[1::2], messages[2::2], strict=True):
            tokens += response_tokens(self.backend, renderer, response.token_ids, response.content)
            tokens += renderer.hint_suffix(user.content, ended=tokens[-1] == self.backend.tokenizer.eos_token_id)
        return tokens

    def _keep_cache(self, key: str) -> None:
        """Keep the KV cache of this conversation, of the running ones, and of the most recent others."""
        if key:
            self._cached = [*(other for other in self._cached if other != key), key][-MAX_CACHED_CONVERSATIONS:]
        self.backend.keep_cached({*self._cached, *(job.request.prompt_cache_key for job in self.running)})


def response_tokens(backend: StreamBackend, renderer: ChatRenderer, token_ids: Sequence[int], text: str) -> list[int]:
    """Return a response's tokens as sampled, or the encoded text if a person wrote it."""
    if token_ids and all(0 <= t < backend.model.config.vocab_size for t in token_ids):
        return list(token_ids)
    return list(backend.tokenizer.encode(renderer.escape(text)))


def with_text_actions(config: BaseRun) -> BaseRun:
    """Return the settings of a chat: a student that chooses among labeled actions writes them as text instead."""
    if config.rollout.prompting != "enumerate":
        return config
    rollout = config.rollout.model_copy(update={"prompting": "append", "reflector": None})
    return config.model_copy(update={"rollout": rollout})


class InteractiveTask:
    """The next turn of a dialogue on a task, as in training, optionally with a person as the teacher."""

    def __init__(self, request: TaskTurnRequest, seed: int, backend: StreamBackend) -> None:
        from rl2f_core.dialogue.rollout.build import build_engine
        from rl2f_core.dialogue.teachers.contentless import ContentlessTeacher
        from rl2f_core.dialogue.teachers.scripted import ScriptedTeacher
        from rl2f_core.environments.capabilities import ScriptedHints, missing_part

        self.request, self.seed, self.backend = request, seed, backend
        self.config = with_text_actions(BaseRun.model_validate(request.config))
        self.task = Task.model_validate(request.task)
        self.turns = [Turn.model_validate(turn) for turn in request.turns]
        has_hints = not missing_part(self.config.environment, (ScriptedHints,))
        teacher = ScriptedTeacher.Config() if has_hints else ContentlessTeacher.Config()
        self.engine = build_engine(self.config, backend, teacher)

    def max_prompt_tokens(self) -> int:
        """Return the maximum prompt length of an attempt."""
        limit = min(self.config.rollout.max_seq_len, self.backend.max_model_len)
        return limit - self.request.max_tokens

    def add_hint(self, job: Job) -> StopReason | None:
        """Screen the hint on the last attempt, if one was requested; returns DROPPED if a leak ends the dialogue."""
        hint = self.request.hint
        if hint is None:
            return None
        if not self.turns:
            raise RunError("There is no attempt to hint on.")
        adapter = self.request.model if job.source.adapter is not None else None
        request = FeedbackRequest(self.task, tuple(self.turns), self.seed, adapter=adapter)
        teacher, resample = self.engine.teacher.name, self.engine.request_feedback
        if hint.by == "person":  # cannot be resampled: the guard replaces a leak by the contentless hint
            feedback = Feedback(self.engine.renderer.escape(hint.text))
            teacher, resample = human.NAME, lambda requests: [feedback] * len(requests)
        screened = self.engine.guard.screen([request], resample([request]), teacher, resample)[0]
        self.turns[-1] = self.turns[-1].model_copy(update={"hint": screened.hint})
        result = TurnResult(hint=screened.hint.model_dump(mode="json"), hint_error=screened.error)
        job.emit_chunk(task=result)
        return StopReason.DROPPED if screened.drop else None

    def prompt(self) -> tuple[int, ...]:
        """Return the student's prompt for the next attempt."""
        renderer = self.engine.renderer
        return self.engine.prompts.prompt(
            self.task, self.turns, lambda turn: response_tokens(self.backend, renderer, turn.token_ids, turn.attempt)
        )

    def verify(self, text: str, generation: Generation) -> TurnResult:
        """Return the attempt with verdict and rewards, and the stop reason."""
        turn = verify_attempt(self.config, self.engine.environment, self.task, self.turns, text, generation)
        ended = stop_reason(turn, self.request.max_turns)
        return TurnResult(turn=turn.model_dump(mode="json"), ended=ended)


def verify_attempt(
    config: BaseRun,
    environment: Environment,
    task: Task,
    turns: Sequence[Turn],
    text: str,
    generation: Generation = Generation((), (), FinishReason.EOS),
) -> Turn:
    """Verify and reward the next turn of a dialogue as the rollout engine does; by default a person wrote it."""
    reprompt = load_reprompt_template(config.rollout) if turns else None
    sampled = generation.token_ids, generation.logprobs, generation.stop
    verdict = environment.verify_turn(task, [turn.verdict for turn in turns], text)
    return build_turn(turns, verdict, config.reward, text, *sampled, None if reprompt is None else reprompt.version)


def describe_failure(error: Exception) -> ErrorBody:
    """Classify a failure and describe it."""
    if out_of_memory(error):
        what = "The model ran out of memory, so there is no response."
        fix = "Start a shorter chat, allow fewer new tokens, use fewer checkpoints, or free memory."
        return ErrorBody.of("memory", RL2FError(what, fix=fix))
    if isinstance(error, ContextOverflowError):
        return ErrorBody.of("context", error, param="messages")
    if isinstance(error, AdapterError):
        return ErrorBody.of("adapter", error, param="model")
    if isinstance(error, ModelError):
        return ErrorBody.of("memory" if "not enough free" in error.what else "model", error, param="model")
    if isinstance(error, ValidationError):
        problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5]]
        field_name = ".".join(map(str, error.errors()[0]["loc"])) or None
        return ErrorBody.of("request", f"The request is not well-formed: {'; '.join(problems)}.", param=field_name)
    if isinstance(error, RL2FError):
        return ErrorBody.of("request", error)
    what = f"The model process met an unexpected error ({type(error).__name__}: {error}); its log has the details."
    return ErrorBody.of("bug", what)
