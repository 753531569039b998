"""The side of the model process that holds the model: loads it once, swaps adapters, answers and plays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from jobs.chat import memory
from jobs.chat.protocol import ChatRow, ChatSampling, GenerateRequest, ModelRequest, PlayRequest, PlayRow
from rl2f_core.backends.base import Prompt, Sampling
from rl2f_core.config import BaseRun, ModelConfig
from rl2f_core.errors import RunError
from rl2f_core.leaks.guard import AskAgain
from rl2f_core.rollout.engine import RolloutEngine, turn_seed
from rl2f_core.rollout.render import Renderer
from rl2f_core.teachers import human
from rl2f_core.teachers.base import Feedback, FeedbackRequest
from rl2f_core.types import StopReason, Task, Turn, TurnStop

Frame = dict[str, Any]
PERIOD = 0.05
"""Seconds between two looks at what was written, so that a fast model does not send a frame for every token."""
KEPT_ADAPTERS = 8


class Stopped(Protocol):
    """Whether a person asked to stop."""

    def __call__(self) -> bool: ...


@dataclass
class _Answer:
    """One row while it is written."""

    index: int
    prompt: Prompt
    adapter: str | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    first: float | None = None
    seconds: float = 0.0
    status: str = "done"
    stop: TurnStop | None = None
    error: RunError | None = None

    def frame(self, **more: Any) -> Frame:
        from jobs.chat.protocol import error_frame

        told = {} if self.error is None else {k: error_frame("context", self.error)[k] for k in ("error", "kind")}
        return {
            "type": "done",
            "row": self.index,
            "status": "failed" if self.error else self.status,
            "text": self.text,
            "token_ids": self.token_ids,
            "logprobs": [round(p, 5) for p in self.logprobs],
            "stop": self.stop,
            "first": self.first,
            "seconds": self.seconds,
            "prompt_tokens": len(self.prompt.token_ids),
            **told,
            **more,
        }


class Host:
    """One base model with its adapters. `reserve` is how many bytes of memory must stay free when it loads."""

    def __init__(self, reserve: int = 0) -> None:
        self.reserve = reserve
        self.backend: Any = None
        self.loads = 0
        """How often a base model was loaded."""
        self.adapter_loads = 0
        self.threads = 0
        """Threads that the process may use at most."""
        self._key: tuple[str, str, str] | None = None
        self._folders: dict[str, str] = {}

    def state(self) -> Frame:
        """What is loaded."""
        held = self._key if self.backend is not None else None
        return {
            "model": held[0] if held else None,
            "device": str(self.backend.device) if held else None,
            "adapters": sorted(self._folders),
            "loads": self.loads,
            "adapter_loads": self.adapter_loads,
            "context_limit": self.backend.context_limit if held else None,
        }

    # -- loading -----------------------------------------------------------------------------------------------
    def ensure(self, model: ModelRequest) -> Iterator[Frame]:
        """Load base and adapters that are not there yet, saying so."""
        key = (model.name, model.dtype, model.device)
        if self.backend is None or self._key != key:
            yield {"type": "status", "text": f"Loading {model.name} …"}
            self._load(model)
            self._key = key
        for name, folder in model.adapters.items():
            if self._folders.get(name) != folder:
                yield {"type": "status", "text": f"Loading {name.partition('#')[0]} …"}
                self.backend.load_adapter(name, Path(folder))
                self.adapter_loads += 1
            self._folders.pop(name, None)
            self._folders[name] = folder  # newest last
        for name in [n for n in self._folders if n not in model.adapters][: max(0, len(self._folders) - KEPT_ADAPTERS)]:
            self.backend.drop_adapter(name)
            del self._folders[name]

    def _load(self, model: ModelRequest) -> None:
        from rl2f_core.device import resolve
        from rl2f_core.models import get_model

        self.unload()
        folder = get_model(model.name).path
        device, dtype = resolve(model.device, model.dtype)
        memory.check_room(folder, model.name, device.type, str(dtype).removeprefix("torch."), self.reserve)
        from rl2f_core.backends._stream import StreamBackend

        self.backend = StreamBackend(ModelConfig(name=model.name, dtype=model.dtype, device=model.device))
        self.loads += 1

    def unload(self) -> None:
        """Give the memory back."""
        held, self.backend, self._key, self._folders = self.backend, None, None, {}
        if held is not None:
            held.adapters.clear()
            del held
            memory.give_back(None)

    # -- answering ---------------------------------------------------------------------------------------------
    def generate(self, request: GenerateRequest, stopped: Stopped) -> Iterator[Frame]:
        """Answers of all rows, side by side."""
        yield from self.ensure(request.model)
        renderer = Renderer(self.backend.tokenizer, request.system)
        answers = [
            _Answer(i, Prompt(self._conversation(renderer, row), row.seed, row.key), row.adapter)
            for i, row in enumerate(request.rows)
        ]
        yield from self._write(answers, request.sampling, stopped, lambda answer: answer.frame())

    def _conversation(self, renderer: Renderer, row: ChatRow) -> tuple[int, ...]:
        """Tokens of user, assistant, user …, up to where the student speaks."""
        roles = [piece.role for piece in row.pieces]
        if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
            raise RunError("A conversation alternates between user and assistant and ends with the user.", value=roles)
        tokens = list(renderer.opening(row.pieces[0].text))
        for said, follow in zip(row.pieces[1::2], row.pieces[2::2], strict=True):
            tokens += self._spoken(renderer, said.token_ids, said.text)
            tokens += renderer.suffix(follow.text, ended=tokens[-1] == self.backend.tokenizer.end_id)
        return tuple(tokens)

    def _spoken(self, renderer: Renderer, token_ids: Sequence[int], text: str) -> list[int]:
        """An answer's tokens: as sampled, or of the words that a person put there."""
        size = self.backend.model.config.vocab_size
        if token_ids and all(0 <= t < size for t in token_ids):
            return list(token_ids)
        return list(self.backend.tokenizer.encode(renderer.clean(text)))

    def _share_cores(self) -> None:
        """On a CPU take the cores that nobody uses: threads that wait for each other crawl on cores that are taken."""
        if self.backend.device.type == "cpu":
            import psutil
            import torch

            self.threads = self.threads or torch.get_num_threads()
            cores = psutil.cpu_count() or 1
            taken = psutil.cpu_percent(interval=0.05) / 100 * cores
            torch.set_num_threads(max(1, min(self.threads, round(cores - taken))))

    def _write(
        self,
        answers: Sequence[_Answer],
        sampling: ChatSampling,
        stopped: Stopped,
        finished: Callable[[_Answer], Frame],
    ) -> Iterator[Frame]:
        """Stream the rows that fit. Each ends with the frame that `finished` makes of it, as soon as it has ended:
        complete, stopped, or with an error."""
        limit = self.backend.context_limit
        for answer in answers:
            if len(answer.prompt.token_ids) + sampling.max_new_tokens > limit:
                answer.error = RunError(
                    f"The conversation has {len(answer.prompt.token_ids)} tokens; with {sampling.max_new_tokens} for "
                    f"the answer that is more than the {limit} of the model's context.",
                    fix="Start a new chat, shorten a message, or allow fewer new tokens.",
                )
                yield finished(answer)
        live = [a for a in answers if a.error is None]
        if stopped():
            for answer in live:
                answer.status = "stopped"
                yield finished(answer)
            return
        if not live:
            return
        yield {"type": "status", "text": ""}
        self._share_cores()
        how = Sampling(sampling.max_new_tokens, sampling.temperature, sampling.top_p)
        began = sent = time.perf_counter()
        pending: set[int] = set()
        over: set[int] = set()
        end = self.backend.tokenizer.end_id
        steps = self.backend.stream([a.prompt for a in live], how, [a.adapter for a in live])
        try:
            for step in steps:
                now = time.perf_counter()
                for row, token, logprob in step:
                    answer = live[row]
                    answer.token_ids.append(token)
                    answer.logprobs.append(logprob)
                    answer.first = answer.first if answer.first is not None else now - began
                    answer.seconds = now - began
                    answer.stop = TurnStop.EOS if token == end else None
                    pending.add(row)
                if now - sent >= PERIOD or any(live[row].first == live[row].seconds for row in pending):
                    yield from self._deltas([live[row] for row in sorted(pending)])
                    pending.clear()
                    sent = now
                for row, token, _ in step:
                    if token == end:
                        over.add(row)
                        yield finished(self._whole(live[row]))
                if stopped():
                    break
        finally:
            steps.close()
        for row, answer in enumerate(live):
            if row not in over:
                complete = len(answer.token_ids) == sampling.max_new_tokens
                answer.status, answer.stop = ("done", TurnStop.LENGTH) if complete else ("stopped", None)
                yield finished(self._whole(answer))

    def _whole(self, answer: _Answer) -> _Answer:
        answer.text = self.backend.tokenizer.decode(answer.token_ids)
        return answer

    def _deltas(self, answers: Sequence[_Answer]) -> Iterator[Frame]:
        for answer in answers:
            text = self.backend.tokenizer.decode(answer.token_ids).rstrip("\ufffd")  # half a character may follow
            if text.startswith(answer.text) and text != answer.text:
                yield {"type": "delta", "row": answer.index, "text": text[len(answer.text) :]}
                answer.text = text

    # -- playing -----------------------------------------------------------------------------------------------
    def play(self, request: PlayRequest, stopped: Stopped) -> Iterator[Frame]:
        """The next turn of every row: hint, attempt, verdict, exactly as in training."""
        yield from self.ensure(request.model)
        config = BaseRun.model_validate(request.config)
        player = Player(config, Task.model_validate(request.task), request.max_turns, self.backend)
        answers, states = [], {}
        for index, row in enumerate(request.rows):
            turns = [Turn.model_validate(turn) for turn in row.turns]
            if row.hint is not None:
                frame, ended = player.hint(turns, row)
                yield {**frame, "row": index}
                if ended is not None:
                    yield {"type": "done", "row": index, "status": "done", "turn": None, "ended": ended}
                    continue
            tokens = player.tokens(turns, lambda turn: self._spoken(player.renderer, turn.token_ids, turn.attempt))
            if len(tokens) > player.room(request.sampling.max_new_tokens):
                ended = StopReason.TRUNCATED
                yield {"type": "done", "row": index, "status": "done", "turn": None, "ended": ended}
                continue
            states[index] = turns
            answers.append(_Answer(index, Prompt(tokens, turn_seed(row.seed, len(turns)), row.key), row.adapter))

        def judged(answer: _Answer) -> Frame:
            if answer.error is not None or answer.status != "done":
                return answer.frame(turn=None, ended=None)
            turn, ended = player.judge(states[answer.index], answer)
            return answer.frame(turn=turn.model_dump(mode="json"), ended=ended)

        yield from self._write(answers, request.sampling, stopped, judged)


class Player:
    """One task under one configuration: what the engine does at a turn, with a person in the teacher's place."""

    def __init__(self, config: BaseRun, task: Task, max_turns: int, backend: Any) -> None:
        from rl2f_core.rollout.build import build_engine
        from rl2f_core.teachers.scripted import ScriptedTeacher

        self.engine: RolloutEngine = build_engine(config, backend, ScriptedTeacher.Config())
        self.renderer = self.engine.renderer
        self.config = config
        self.task = task
        self.max_turns = max_turns

    def room(self, max_new_tokens: int) -> int:
        """Tokens that a dialogue may have before an attempt."""
        return min(self.config.rollout.context_length, self.engine.backend.context_limit) - max_new_tokens

    def hint(self, turns: list[Turn], row: PlayRow) -> tuple[Frame, StopReason | None]:
        """Let the teacher or the person hint on the last attempt, and the guard read it; `turns` grows by the hint."""
        if row.hint is None or not turns:
            raise RunError("There is no attempt to hint on.")
        request = FeedbackRequest(self.task, tuple(turns), row.seed, adapter=row.adapter)
        again: AskAgain
        if row.hint.by == "scripted":
            said, name, again = self.engine.ask([request]), self.engine.teacher.name, self.engine.ask
        else:  # a person is not asked again: a hint that is to be resampled ends as the contentless one
            own = Feedback(self.renderer.clean(row.hint.text))
            said, name, again = [own], human.NAME, lambda requests: [own for _ in requests]
        guarded = self.engine.guard.read([request], said, name, again)[0]
        turns[-1] = turns[-1].model_copy(update={"hint": guarded.hint})
        frame = {"type": "hint", "hint": guarded.hint.model_dump(mode="json"), "error": guarded.error}
        return frame, StopReason.DROPPED if guarded.drop else None

    def tokens(self, turns: Sequence[Turn], spoken: Callable[[Turn], list[int]]) -> tuple[int, ...]:
        """What the student reads before its next attempt, exactly as in training."""
        return self.engine.history.prompt(self.task, turns, spoken)

    def judge(self, turns: Sequence[Turn], answer: _Answer) -> tuple[Turn, StopReason | None]:
        """The attempt with verdict and rewards, and how the dialogue ended, None where it goes on."""
        from jobs.chat.play import attempt

        turn = attempt(
            self.config, self.engine.environment, self.task, turns, answer.text, answer.token_ids, answer.logprobs,
            answer.stop or TurnStop.EOS,
        )  # fmt: skip
        if turn.verdict.correct:
            return turn, StopReason.SOLVED
        return turn, StopReason.EXHAUSTED if len(turns) + 1 >= self.max_turns else None
