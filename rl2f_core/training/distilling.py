"""A `distill` stage: ask, verify, choose, keep, step after step, and a data set at the end.

Every step is a commit like one of training, so a stage that was killed goes on where it was and, with a source that
answers the same to the same seed, ends with the same data set.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl2f_core import registry
from rl2f_core.config import StageConfig
from rl2f_core.errors import RunError
from rl2f_core.evaluation.statistics import wilson
from rl2f_core.events import DialogueEvent, Event, LogEvent, MetricEvent
from rl2f_core.llms.base import ChatModel, ChatRequest
from rl2f_core.methods.base import Method
from rl2f_core.methods.distill import Keep
from rl2f_core.ranks import here
from rl2f_core.rollout.engine import Request, RolloutEngine, derive_seed
from rl2f_core.training.collect import SEED_STRIDE
from rl2f_core.training.metrics import step_metrics
from rl2f_core.training.stored import Draft, normalised
from rl2f_core.training.written import transcribe
from rl2f_core.types import DEMONSTRATION, Dialogue, Group, Message, Rollout, Task, TurnStop, Usage

if TYPE_CHECKING:
    from rl2f_core.training.loop import Trainer

Fate = str
"""What became of a sample: kept; spare (right, another was kept); duplicate; wrong; unparsable; too_long (right, but
longer than what is kept, or cut off); failed (the source had no answer)."""


def fates(rollouts: Sequence[Rollout], keep: Keep, limit: int, taken: Container[str]) -> list[Fate]:
    """What becomes of each sample of one task.

    Args:
        rollouts: The samples, one attempt each.
        keep: Which of the right ones.
        limit: Tokens of the longest answer that is kept, the end of the message included.
        taken: The normalised texts that are in the data set for this problem already.
    """
    found: list[Fate] = []
    mine: set[str] = set()
    for rollout in rollouts:
        turn = rollout.dialogue.turns[0] if rollout.dialogue.trainable else None
        if turn is None:
            found.append("failed")
        elif turn.verdict.parsed is None:
            found.append("unparsable")
        elif not turn.verdict.correct:
            found.append("wrong")
        elif turn.stop is not TurnStop.EOS or len(turn.token_ids) > limit:
            found.append("too_long")
        elif (key := normalised(turn.attempt)) in taken or key in mine:
            found.append("duplicate")
        else:
            mine.add(key)
            found.append("right")
    right = [i for i, fate in enumerate(found) if fate == "right"]
    if keep == "shortest":
        right.sort(key=lambda i: len(rollouts[i].dialogue.turns[0].token_ids))
    chosen = right if keep == "all" else right[:1]
    return ["kept" if i in chosen else "spare" if fate == "right" else fate for i, fate in enumerate(found)]


@dataclass
class Tally:
    """Counts over tasks and samples, in the making or at the end."""

    drawn: int = 0
    """Tasks of the stream."""
    repeats: int = 0
    """Tasks that were there before, and so not asked."""
    asked: Counter[str] = dataclasses.field(default_factory=Counter)
    """Tasks that were asked, by level."""
    kept: Counter[str] = dataclasses.field(default_factory=Counter)
    """Tasks of which a row was kept, by level."""
    fates: Counter[str] = dataclasses.field(default_factory=Counter)
    """Samples by what became of them."""
    usage: Usage = dataclasses.field(default_factory=Usage)
    """What a model source cost."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.drawn + other.drawn, self.repeats + other.repeats, self.asked + other.asked,
                     self.kept + other.kept, self.fates + other.fates, self.usage + other.usage)  # fmt: skip

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Tally:
        """What `as_dict` gave."""
        return cls(data["drawn"], data["repeats"], Counter(data["asked"]), Counter(data["kept"]),
                   Counter(data["samples"]), Usage.model_validate(data["usage"]))  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """For the data set's description."""
        return {"drawn": self.drawn, "repeats": self.repeats, "asked": dict(sorted(self.asked.items())),
                "kept": dict(sorted(self.kept.items())), "samples": dict(sorted(self.fates.items())),
                "usage": self.usage.model_dump()}  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """`distill/yield` is the share of the asked tasks of which a row was kept, by level too; the rest are counts,
        and shares of the samples."""
        asked, kept, samples = self.asked.total(), self.kept.total(), self.fates.total()
        values: dict[str, float] = {"distill/asked": asked, "distill/kept": kept, "distill/repeats": self.repeats,
                  "distill/rows": self.fates["kept"], "distill/samples": samples}  # fmt: skip
        if asked:
            values["distill/yield"] = kept / asked
            values |= {f"distill/yield/{level}": self.kept[level] / n for level, n in self.asked.items()}
        if samples:
            for fate in ("wrong", "unparsable", "duplicate", "too_long", "failed"):
                values[f"distill/frac_{fate}"] = self.fates[fate] / samples
        if self.usage.completion_tokens or self.usage.requests:
            values |= {"source/prompt_tokens": self.usage.prompt_tokens, "source/requests": self.usage.requests,
                       "source/completion_tokens": self.usage.completion_tokens}  # fmt: skip
            if self.usage.cost is not None:
                values["source/cost"] = self.usage.cost
        return {name: float(value) for name, value in values.items()}

    def text(self) -> str:
        """For people: the yield with its 95 % interval, by level, and what became of the samples."""

        def share(kept: int, asked: int) -> str:
            interval = wilson(kept, asked)
            return f"{kept} of {asked} ({kept / asked:.1%}, 95 % {interval.low:.1%} to {interval.high:.1%})"

        asked, samples = self.asked.total(), self.fates.total()
        if not asked:
            return "no task was asked"
        parts = [f"{share(self.kept.total(), asked)} tasks gave a right answer"]
        if len(self.asked) > 1:
            parts.append("; ".join(f"{level}: {share(self.kept[level], n)}" for level, n in sorted(self.asked.items())))
        told = ", ".join(f"{n} {fate.replace('_', ' ')}" for fate, n in self.fates.most_common())
        parts.append(f"Of {samples} samples: {told}")
        if self.repeats:
            parts.append(f"{self.repeats} of {self.drawn} tasks came again and were not asked")
        if self.usage.cost is not None:
            parts.append(f"${self.usage.cost:,.4f}")
        return ". ".join(parts)


class Source:
    """Who answers."""

    def __init__(self, engine: RolloutEngine, stage: StageConfig, adapter: str | None) -> None:
        self.config: Any = stage.method
        limit = self.config.max_new_tokens or engine.config.max_new_tokens
        self.engine = dataclasses.replace(engine, config=engine.config.model_copy(update={"max_new_tokens": limit}))
        self.temperature = engine.config.temperature
        self.adapter, self.policy = adapter, f"{stage.name}@0"
        self.llm: ChatModel | None = None
        if self.config.source == "llm":
            made: Any = registry.get("llm", self.config.llm.type)
            self.llm = made(self.config.llm, engine.teacher.models)

    @property
    def name(self) -> str:
        """For people and records."""
        if self.llm is not None:
            return self.llm.name
        return DEMONSTRATION if self.config.source == "solution" else self.policy

    def answers(self, requests: Sequence[Request], advanced: Any) -> tuple[list[Rollout], Usage]:
        """A rollout of one attempt for every request; where there is no answer, one of a failed dialogue."""
        if self.llm is not None:
            llm = self.llm
            return here().from_main(lambda: self._ask(llm, requests))
        if self.config.source == "student":
            return self.engine.play(requests, adapter=self.adapter, policy=self.policy, max_turns=1,
                                    temperature=self.temperature, advanced=advanced), Usage()  # fmt: skip
        found = []
        error = "The environment has no worked solution for this task."
        texts = [self.engine.environment.worked_solution(request.task) for request in requests]
        self._prepare(requests, texts)
        for request, text in zip(requests, texts, strict=True):
            found.append(self._written(request, text, None if text is not None else error))
        return found, Usage()

    def _prepare(self, requests: Sequence[Request], texts: Sequence[str | None]) -> None:
        """Have the environment judge all answers together, where that is cheaper."""
        said = zip(requests, texts, strict=True)
        self.engine.environment.prepare([(request.task, text) for request, text in said if text is not None])

    def _ask(self, llm: ChatModel, requests: Sequence[Request]) -> tuple[list[Rollout], Usage]:
        environment = self.engine.environment
        system = "\n\n".join(filter(None, (environment.system(), self.config.instruction)))
        head = [Message(role="system", content=system)] if system else []
        asked = []
        for request in requests:
            problem = environment.prompt(request.task.public)
            asked.append(ChatRequest((*head, Message(role="user", content=problem)), request.seed))
        told = llm.complete(asked, max_new_tokens=self.engine.config.max_new_tokens, temperature=self.temperature)
        self._prepare(requests, [None if said.error else said.text for said in told])
        rollouts, usage = [], Usage()
        for request, said in zip(requests, told, strict=True):
            usage = usage + said.usage
            cut = said.finish == "length"
            rollouts.append(self._written(request, None if said.error else said.text, said.error, cut=cut))
        return rollouts, usage

    def _written(self, request: Request, text: str | None, error: str | None, *, cut: bool = False) -> Rollout:
        rollout = transcribe(self.engine, request, [] if text is None else [text], policy=self.name)
        dialogue = rollout.dialogue
        if error is not None:
            dialogue = dialogue.model_copy(update={"error": error})
        if cut and dialogue.turns:
            turn = dialogue.turns[0].model_copy(update={"stop": TurnStop.LENGTH})
            dialogue = dialogue.model_copy(update={"turns": (turn,)})
        return dataclasses.replace(rollout, dialogue=dialogue)


class DataStage:
    """Runs one `distill` stage for a trainer."""

    def __init__(self, trainer: Trainer, stage: StageConfig, method: Method, adapter: str) -> None:
        self.trainer, self.stage, self.method = trainer, stage, method
        self.engine, self.seed = trainer.engine, trainer.config.seed
        self.source = Source(self.engine, stage, adapter)
        self.limit = method.config.max_kept_tokens or self.engine.config.max_new_tokens
        self.draft = Draft(trainer.run_dir, stage.name)
        self.tally = Tally()
        self.rows: list[dict[str, Any]] = []
        self.problems: set[str] = set()
        self.texts: dict[str, set[str]] = {}

    def run(self, start: int, commit: Callable[[int], None]) -> bool:
        """The steps that are left; `commit` makes a step real. False where the trainer's `stop` ended it early."""
        trainer, stage = self.trainer, self.stage
        for part in self.draft.steps(start):
            self._take(part["rows"], Tally.read(part["counts"]))
        for step in range(start, stage.steps):
            if trainer.stop():
                commit(step)
                return False
            began = time.perf_counter()
            groups, marks, usage = self._ask(step)
            rows, tally = self._choose(groups, marks)
            tally.drawn, tally.usage = stage.tasks_per_step, usage
            tally.repeats = stage.tasks_per_step - len(groups)
            if groups and tally.fates["failed"] == tally.fates.total():
                raise RunError(
                    f"The source of stage {stage.name} answered nothing in step {step + 1}: "
                    f"{groups[0].rollouts[0].dialogue.error}",
                    value=self.source.name,
                    fix="Mend the source, then resume the run; what was kept so far stays.",
                )
            self._keep(step + 1, rows, tally)
            self._take(rows, tally)
            trainer.journal.emit(self._events(step + 1, groups, marks, time.perf_counter() - began))
            if step + 1 == stage.steps:
                trainer.journal.emit([self._finish()])
            commit(step + 1)
            note = f"kept {self.tally.kept.total()} of {self.tally.asked.total()}"
            trainer.progress.update(f"stage {stage.name}", step + 1, stage.steps, note)
            trainer.run_dir.heartbeat(status="running", stage=stage.name, step=step + 1, steps=stage.steps)
        here().alone(self.draft.clear)
        trainer.progress.say(f"{stage.name}: {self.tally.text()}.")
        return True

    def _keep(self, step: int, rows: Sequence[Mapping[str, Any]], tally: Tally) -> None:
        """Write a step's part of the data set."""
        here().alone(lambda: self.draft.put(step, rows, tally.as_dict()))

    def _ask(self, step: int) -> tuple[list[Group], list[list[Fate]], Usage]:
        """The step's groups with what becomes of their samples, and what the source cost."""
        stage, environment = self.stage.at(step), self.engine.environment
        self.source.temperature = stage.temperature or self.engine.config.temperature
        tasks: list[tuple[int, Task, str]] = []
        seen: set[str] = set()
        for i in range(stage.tasks_per_step):
            task = environment.task("train", self.seed * SEED_STRIDE + step * stage.tasks_per_step + i)
            key = environment.canonical(task)
            if self.method.config.unique == "task" and (key in self.problems or key in seen):
                continue
            seen.add(key)
            tasks.append((i, task, key))
        requests = []
        for i, task, _ in tasks:
            name = f"{stage.name}/{step + 1}/{i}"
            for j in range(stage.group_size):
                seed = derive_seed(self.seed, stage.name, step, 0, i, j)
                requests.append(Request(task, f"{name}/{j}", name, j, seed))
        advanced = self.trainer._ticker(f"{stage.name} step {step + 1} answers")
        rollouts, usage = self.source.answers(requests, advanced) if requests else ([], Usage())
        size = stage.group_size
        groups = [Group(task, tuple(rollouts[n * size : (n + 1) * size])) for n, (_, task, _) in enumerate(tasks)]
        marks = []
        mine: dict[str, set[str]] = {}
        for group, (_, task, key) in zip(groups, tasks, strict=True):
            held = mine.setdefault(scope := self._scope(task, key), set(self.texts.get(scope, ())))
            mark = fates(group.rollouts, self.method.config.keep, self.limit, held)
            held |= {
                normalised(rollout.dialogue.turns[0].attempt)
                for rollout, fate in zip(group.rollouts, mark, strict=True)
                if fate == "kept"
            }
            marks.append(mark)
        return groups, marks, usage

    def _scope(self, task: Task, key: str) -> str:
        """What two equal answers must share to be duplicates: the problem as it is worded."""
        return f"{key}|{normalised(self.engine.environment.prompt(task.public))}"

    def _choose(self, groups: Sequence[Group], marks: Sequence[Sequence[Fate]]) -> tuple[list[dict[str, Any]], Tally]:
        """The rows of a step, and its counts but for tasks drawn and cost."""
        rows, tally = [], Tally()
        for group, mark in zip(groups, marks, strict=True):
            tally.asked[group.task.level] += 1
            tally.kept[group.task.level] += "kept" in mark
            tally.fates.update(mark)
            rows += [self._row(group.task, rollout.dialogue) for rollout, fate in zip(group.rollouts, mark, strict=True)
                     if fate == "kept"]  # fmt: skip
        return rows, tally

    def _row(self, task: Task, dialogue: Dialogue) -> dict[str, Any]:
        environment, turn = self.engine.environment, dialogue.turns[0]
        return {
            "prompt": [dict(message) for message in self.engine.renderer.messages(environment.prompt(task.public))],
            "completion": [{"role": "assistant", "content": turn.attempt}],
            "task": task.id,
            "canonical": environment.canonical(task),
            "split": task.split,
            "environment": task.environment,
            "level": task.level,
            "tokens": len(turn.token_ids),
            "source": self.source.name,
            "dialogue": self._event(dialogue, task, "kept", 0).id,
            "task_data": task.model_dump(mode="json"),
        }

    def _take(self, rows: Iterable[Mapping[str, Any]], tally: Tally) -> None:
        """Add a step's rows to what later steps must not repeat."""
        for row in rows:
            self.rows.append(dict(row))
            task = Task.model_validate(row["task_data"])
            self.problems.add(row["canonical"])
            text = normalised(row["completion"][0]["content"])
            self.texts.setdefault(self._scope(task, row["canonical"]), set()).add(text)
        self.tally = self.tally + tally

    def _event(self, dialogue: Dialogue, task: Task, fate: Fate, step: int) -> DialogueEvent:
        return DialogueEvent.of("distill", self.stage.name, step, task, dialogue, control=fate)

    def _events(
        self, step: int, groups: Sequence[Group], marks: Sequence[Sequence[Fate]], seconds: float
    ) -> list[Event]:
        """A step's dialogues under what became of them, and its numbers: counts and shares are those so far."""
        events: list[Event] = []
        for group, mark in zip(groups, marks, strict=True):
            for rollout, fate in zip(group.rollouts, mark, strict=True):
                events.append(self._event(rollout.dialogue, group.task, fate, step))
        values = (step_metrics(groups, 1, self.method) if groups else {}) | self.tally.metrics()
        values |= {"seconds/rollout": seconds}
        name = self.stage.name
        return [*events, MetricEvent(id=f"metric:{name}:{step}", stage=name, step=step, values=values)]

    def _finish(self) -> LogEvent:
        if not self.rows:
            raise RunError(f"Stage {self.stage.name} kept no answer: {self.tally.text()}.", value=self.source.name,
                           fix="Take a stronger source, more samples a task, or a longer max_new_tokens.")  # fmt: skip
        about = {
            "environment": self.engine.environment.config.model_dump(mode="json"),
            "source": self.source.name,
            "method": self.method.config.model_dump(mode="json"),
            "counts": self.tally.as_dict(),
            "summary": self.tally.text(),
        }
        here().alone(lambda: self.draft.finish(self.rows, about))
        return LogEvent(id=f"distill:{self.stage.name}", text=f"Data set {self.stage.name}: {self.tally.text()}.")
