"""The rollout engine runs dialogues of student, verifier, teacher and leak guard.

Each active dialogue is generating, waits for feedback, or is done:

    start ─► (reflector) ─► student ─► verifier ─► done
                  ▲                        │
                guard ◄───────────────── teacher

At most `rollout.max_concurrent` dialogues are active; when one is done, the next starts. With `batching: continuous`,
each attempt is verified as soon as it is generated, while other dialogues continue. With `static`, all attempts are
generated first. A dialogue depends only on its request, so both give the same dialogues.

A failing dialogue is data and does not end the run: a full context ends it as `context_full`, an error of a component
as `failed`.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rl2f_core.config.rollout import RewardConfig, RolloutConfig
from rl2f_core.dialogue.rollout.dialogue_builder import DialogueBuilder, build_turn, stop_reason
from rl2f_core.dialogue.rollout.enumeration import reflection_prompt, replaced_reflection
from rl2f_core.dialogue.rollout.leak_guard import LeakGuard, ScreenedHint
from rl2f_core.dialogue.rollout.prompting import PromptBuilder, load_reprompt_template
from rl2f_core.dialogue.rollout.request import RolloutRequest as RolloutRequest
from rl2f_core.dialogue.rollout.request import StudentPolicy as StudentPolicy
from rl2f_core.dialogue.rollout.request import derive_seed as derive_seed
from rl2f_core.dialogue.rollout.request import turn_seed as turn_seed
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.dialogue.teachers.misleading import is_misled
from rl2f_core.environments.base import Environment
from rl2f_core.errors import DataError
from rl2f_core.models.backends.base import Backend, Generation, GenerationRequest, PendingGeneration, SamplingParams
from rl2f_core.models.backends.concurrency import CooperativeLock
from rl2f_core.models.process_group import current_group
from rl2f_core.models.renderer import ChatRenderer
from rl2f_core.types import Rollout, StopReason, Turn, Verdict

REFLECTOR = "reflector"
"""Name of the reflector's adapter in the backend (`build.load_reflector`)."""


@dataclass(frozen=True)
class RolloutEngine:
    """Runs dialogues between a backend's student and a teacher."""

    environment: Environment
    teacher: Teacher
    guard: LeakGuard
    backend: Backend
    renderer: ChatRenderer
    config: RolloutConfig
    reward: RewardConfig
    stop_on_correct: bool = True
    """End a dialogue at a correct attempt. If False, it uses all turns and its last attempt counts; for teachers that
    do not know the verdict (`Teacher.handles_correct_attempts`)."""

    @functools.cached_property
    def prompts(self) -> PromptBuilder:
        """Builder of the student's prompts. Raises `ConfigError` if the reprompt template is invalid."""
        enumerates = self.config.prompting == "enumerate"
        return PromptBuilder(self.environment, self.renderer, load_reprompt_template(self.config), enumerates)

    @property
    def reflector_adapter(self) -> str | None:
        """Backend's name of the reflector; None is the base."""
        config = self.config.reflector
        return REFLECTOR if config is not None and (config.stage or config.checkpoint) else None

    def run(
        self,
        requests: Sequence[RolloutRequest],
        *,
        adapter: str | None = None,
        policy: str = "base",
        max_turns: int | None = None,
        temperature: float | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[Rollout]:
        """Run all requests, at most `config.max_concurrent` at a time, in order.

        Each process of a distributed run works on a contiguous shard, so that the dialogues of a group, which share
        their prompt, mostly run in one process.

        Args:
            requests: Dialogues to run, the same in all processes. A rollout depends only on its own request.
            adapter: Backend's name of the student's adapter, for requests without a student; None is the base.
            policy: Name of that checkpoint in the dialogues.
            max_turns: Maximum number of turns; None is the configuration's.
            temperature: Sampling temperature; None is the configuration's.
            on_progress: Called with (finished dialogues, all dialogues) of this process after verdicts or hints.
        """
        temperature = self.config.temperature if temperature is None else temperature
        sampling = SamplingParams(self.config.max_new_tokens, temperature, self.config.top_p)
        turns = max_turns or self.config.max_turns
        student = StudentPolicy(adapter, policy)

        def run_shard(shard: Sequence[RolloutRequest]) -> list[Rollout]:
            dialogues = RolloutLoop(self, shard, sampling, student=student, turns=turns, on_progress=on_progress).run()
            self.backend.reset_prefix_cache()
            shown = self.stop_on_correct
            return [dialogue.rollout(dialogue.student.policy, verdicts_shown=shown) for dialogue in dialogues]

        return current_group().map_sharded(requests, run_shard)

    @property
    def runs_async(self) -> bool:
        """Whether a hint needs a model, so that other dialogues should continue meanwhile."""
        return self.teacher.runs_async or any(detector.runs_async for detector in self.guard.detectors)

    def request_feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Request feedback; escape it before the guard screens what the student reads."""
        return [
            replace(feedback, text=self.renderer.escape(feedback.text)) for feedback in self.teacher.feedback(requests)
        ]

    def get_hints(self, requests: Sequence[FeedbackRequest]) -> list[ScreenedHint | Exception]:
        """Request and screen hints in a batch, or one by one to isolate errors."""
        try:
            return [
                *self.guard.screen(requests, self.request_feedback(requests), self.teacher.name, self.request_feedback)
            ]
        except Exception as error:  # ends only the dialogue of the failed request
            return [error] if len(requests) == 1 else [self.get_hints([request])[0] for request in requests]


class ActiveDialogue(DialogueBuilder):
    """A dialogue with its maximum number of turns and its student."""

    def __init__(self, request: RolloutRequest, prompts: PromptBuilder, limit: int, student: StudentPolicy) -> None:
        super().__init__(request, prompts)
        self.limit, self.student = limit, student

    @property
    def key(self) -> str:
        """Cache key in the backend; several students may run the same dialogue."""
        return self.request.id if self.request.student is None else f"{self.request.id} {self.student.adapter}"


class RolloutLoop:
    """One call of `RolloutEngine.run`, which documents the arguments."""

    def __init__(
        self,
        engine: RolloutEngine,
        requests: Sequence[RolloutRequest],
        sampling: SamplingParams,
        *,
        student: StudentPolicy,
        turns: int,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self.engine, self.sampling, self.student, self.turns = engine, sampling, student, turns
        self.static = engine.config.batching == "static"
        self.runs_async = engine.runs_async and not self.static
        """Whether hints are requested in threads while other dialogues continue."""
        self.total, self.on_progress = len(requests), on_progress
        self.queue = deque(requests)
        self.dialogues: list[ActiveDialogue] = []
        self.active: list[ActiveDialogue] = []
        self.generating: dict[PendingGeneration, ActiveDialogue] = {}
        self.reflecting: dict[PendingGeneration, ActiveDialogue] = {}
        self.num_async = 0
        """Dialogues whose hints are requested in threads."""
        self.answers: list[tuple[ActiveDialogue, ScreenedHint | Exception]] = []
        """Results of those threads that were not collected yet."""

    def run(self) -> list[ActiveDialogue]:
        """Run all dialogues and return them in the order of the requests."""
        with CooperativeLock() as self.lock, self.engine.backend.session() as self.session:
            self._admit()
            while self.active:
                advanced = self._step_generation()
                advanced += self._collect_feedback(wait=not advanced)
                self._dispatch(advanced)
                self._admit()
                if advanced and self.on_progress is not None:
                    self.on_progress(len(self.dialogues) - len(self.active), self.total)
        return self.dialogues

    # -- start and end -----------------------------------------------------------------------------------------
    def _admit(self) -> None:
        """Start dialogues up to the maximum number of active ones."""
        while self.queue and len(self.active) < self.engine.config.max_concurrent:
            free = self.engine.config.max_concurrent - len(self.active)
            started = [self._start_dialogue(self.queue.popleft()) for _ in range(min(free, len(self.queue)))]
            self.dialogues += started
            self.active += started
            without_hint = [d for d in started if d.stop is None and d.turns and d.turns[-1].hint is None]
            self._dispatch([d for d in started if d not in without_hint] + self._request_hints(without_hint))

    def _start_dialogue(self, request: RolloutRequest) -> ActiveDialogue:
        """Build a dialogue with the initial prompt and the request's earlier turns."""
        limit, student = request.max_turns or self.turns, request.student or self.student
        dialogue = ActiveDialogue(request, self.engine.prompts, limit, student)
        self.engine.environment.restore(request.task, [turn.verdict for turn in request.turns])
        for turn in request.turns:
            dialogue.reflection = turn.reflection
            dialogue.begin_turn(turn.actions)
            dialogue.add_attempt(turn, *self._stored_tokens(dialogue, turn))
            if turn.hint is not None:
                dialogue.add_hint_tokens()
        self._check_done(dialogue)
        return dialogue

    def _stored_tokens(self, dialogue: ActiveDialogue, turn: Turn) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return a turn's sampled tokens and logprobs, or encode a written text.

        Raises `DataError` if the tokens are those of another tokenizer.
        """
        tokenizer = self.engine.backend.tokenizer
        if not turn.token_ids:
            written = dialogue.written_tokens(turn.attempt)
            return written, (0.0,) * len(written)
        try:
            same = dialogue.attempt_text(tokenizer.decode(turn.token_ids)) == turn.attempt
        except (ValueError, IndexError, OverflowError, TypeError):
            same = False
        if not same:
            raise DataError(
                "The stored tokens are not those of this model's tokenizer.",
                value=turn.attempt,
                fix="Use the base model of the stored dialogue.",
            )
        return turn.token_ids, turn.logprobs or (0.0,) * len(turn.token_ids)

    def _check_done(self, dialogue: ActiveDialogue) -> None:
        """End the dialogue after a correct attempt, the end of the episode, or its last turn."""
        if dialogue.turns:
            dialogue.stop = stop_reason(dialogue.turns[-1], dialogue.limit, stop_on_correct=self.engine.stop_on_correct)

    def _dispatch(self, dialogues: Sequence[ActiveDialogue]) -> None:
        """Submit unfinished dialogues for generation, of a reflection or of the attempt; finalize the others."""
        engine = self.engine
        max_prompt = min(engine.config.max_seq_len, engine.backend.max_model_len) - self.sampling.max_new_tokens
        dialogues = self._request_reflections(dialogues)
        for dialogue in dialogues:
            if dialogue.stop is None:
                self._begin_turn(dialogue)
            if dialogue.stop is None and len(dialogue.tokens) > max_prompt:
                dialogue.stop = StopReason.SOLVED if dialogue.is_correct else StopReason.CONTEXT_FULL
        done = {id(d): d for d in dialogues if d.stop is not None}
        if done:
            self.session.release_cache(d.key for d in done.values())
            self.active = [d for d in self.active if id(d) not in done]
        by_adapter: dict[str | None, list[ActiveDialogue]] = defaultdict(list)
        for dialogue in dialogues:
            if dialogue.stop is None:
                by_adapter[dialogue.student.adapter].append(dialogue)
        for adapter, unfinished in by_adapter.items():
            prompts = [
                GenerationRequest(tuple(d.tokens), turn_seed(d.request.seed, d.turn), d.key, d.choices)
                for d in unfinished
            ]
            pending = self.session.submit(prompts, self.sampling, adapter)
            self.generating.update(zip(pending, unfinished, strict=True))

    def _request_reflections(self, dialogues: Sequence[ActiveDialogue]) -> list[ActiveDialogue]:
        """Submit reflections on the current states; return the dialogues that need none, or have one."""
        config, engine = self.engine.config.reflector, self.engine
        if config is None:
            return list(dialogues)
        limit = min(engine.config.max_seq_len, engine.backend.max_model_len) - config.max_new_tokens
        waiting: dict[ActiveDialogue, GenerationRequest] = {}
        for dialogue in dialogues:
            if dialogue.stop is not None or dialogue.reflection is not None:
                continue
            try:
                dialogue.reflection = replaced_reflection(engine.prompts, dialogue.request, dialogue.verdicts)
                if dialogue.reflection is None:
                    prompt = reflection_prompt(engine.prompts, dialogue.request.task, dialogue.turns)
                    seed = turn_seed(dialogue.request.seed, f"{dialogue.turn}/reflection")
                    waiting[dialogue] = GenerationRequest(prompt, seed)
                    if len(prompt) > limit:
                        dialogue.stop = StopReason.CONTEXT_FULL
                        del waiting[dialogue]
            except Exception as error:  # an environment should describe its states; otherwise only this dialogue fails
                dialogue.fail(error)
        sampling = replace(self.sampling, max_new_tokens=config.max_new_tokens)
        pending = self.session.submit([*waiting.values()], sampling, engine.reflector_adapter) if waiting else []
        self.reflecting.update(zip(pending, waiting, strict=True))
        return [dialogue for dialogue in dialogues if dialogue not in waiting]

    def _begin_turn(self, dialogue: ActiveDialogue) -> None:
        """Write the prompt that lists the valid actions, if prompts do."""
        try:
            dialogue.begin_turn()
        except Exception as error:  # an environment should have valid actions; otherwise only this dialogue fails
            dialogue.fail(error)

    # -- the student -------------------------------------------------------------------------------------------
    def _step_generation(self) -> list[ActiveDialogue]:
        """Step the generation; return the dialogues with a new reflection, or that need no asynchronous hint."""
        while self.session.has_unfinished:
            start = time.perf_counter()
            self.session.step()
            self.engine.backend.seconds_generating += time.perf_counter() - start
            pendings = (*self.generating, *self.reflecting)
            if not (self.static and any(pending.generation is None for pending in pendings)):
                break
        reflected = [(p, p.generation) for p in self.reflecting if p.generation is not None]
        reflections = [(self.reflecting.pop(pending), generation) for pending, generation in reflected]
        for dialogue, generation in reflections:
            dialogue.reflection = self.engine.backend.tokenizer.decode(generation.token_ids).strip()
        finished = [(pending, pending.generation) for pending in self.generating if pending.generation is not None]
        attempts = [(self.generating.pop(pending), generation) for pending, generation in finished]
        self._verify_batch(attempts)
        done = [d for d, _ in attempts if d.stop is not None]
        return [d for d, _ in reflections] + done + self._request_hints([d for d, _ in attempts if d.stop is None])

    def _verify_batch(self, attempts: Sequence[tuple[ActiveDialogue, Generation]]) -> None:
        """Record and verify attempts, after the environment could prefetch their verdicts."""
        environment, decode = self.engine.environment, self.engine.backend.tokenizer.decode
        texts = [dialogue.attempt_text(decode(generation.token_ids)) for dialogue, generation in attempts]
        if attempts:
            with contextlib.suppress(Exception):  # `verify` raises again for the attempt that failed
                environment.prefetch_verdicts(
                    [(d.request.task, text) for (d, _), text in zip(attempts, texts, strict=True)]
                )
        for (dialogue, generation), text in zip(attempts, texts, strict=True):
            self._add_attempt(dialogue, generation, text)
            if dialogue.stop is None:
                self._check_done(dialogue)

    def _add_attempt(self, dialogue: ActiveDialogue, generation: Generation, text: str) -> None:
        try:
            verdict = self.engine.environment.verify_turn(dialogue.request.task, dialogue.verdicts, text)
        except Exception as error:  # a verifier should accept any text; otherwise only this dialogue fails
            verdict = Verdict(correct=False, score=0.0, detail="the verifier failed")
            dialogue.fail(error)
        prompt_template = self.engine.prompts.version(dialogue.turn)
        turn = build_turn(dialogue.turns, verdict, self.engine.reward, text, generation.token_ids, generation.logprobs,
                          generation.stop, prompt_template)  # fmt: skip
        before = FeedbackRequest(dialogue.request.task, tuple(dialogue.turns), dialogue.request.seed)
        with contextlib.suppress(Exception):  # a measurement does not end the dialogue
            turn = turn.model_copy(update={"misled": is_misled(self.engine.environment, before, verdict)})
        dialogue.add_attempt(turn, generation.token_ids, generation.logprobs, generation.choice_logprobs)

    # -- the teacher -------------------------------------------------------------------------------------------
    def _request_hints(self, dialogues: Sequence[ActiveDialogue]) -> list[ActiveDialogue]:
        """Request hints on the last attempts; return the dialogues that have theirs."""
        requests = [
            FeedbackRequest(d.request.task, tuple(d.turns), d.request.seed, adapter=d.student.adapter,
                            reveals_verdict=self.engine.stop_on_correct,
                            recorded=d.request.recorded_at(len(d.turns) - 1)) for d in dialogues
        ]  # fmt: skip
        if self.runs_async:
            for dialogue, request in zip(dialogues, requests, strict=True):
                self.num_async += 1
                self.lock.spawn(self._request_hint_async, dialogue, request)
            return []
        for dialogue, answer in zip(dialogues, self.engine.get_hints(requests) if requests else (), strict=True):
            dialogue.add_feedback(answer)
        return list(dialogues)

    def _request_hint_async(self, dialogue: ActiveDialogue, request: FeedbackRequest) -> None:
        (answer,) = self.engine.get_hints([request])
        self.answers.append((dialogue, answer))

    def _collect_feedback(self, *, wait: bool) -> list[ActiveDialogue]:
        """Let the threads run and add their hints; return those dialogues.

        With `wait`, block until a thread has run, unless there is generation or an answer to process.
        """
        if not self.num_async:
            return []
        self.lock.yield_lock(wait=wait and not self.session.has_unfinished and not self.answers)
        answered, self.answers = self.answers, []
        self.num_async -= len(answered)
        for dialogue, answer in answered:
            dialogue.add_feedback(answer)
        return [dialogue for dialogue, _ in answered]
