"""Dialogues for pages and programs: the engine's record, with findings, labels, hint values and texts of prompts.

Privileged data of a record is excluded from JSON. Nothing here loads a model: the environment is built from the run's
configuration, and the `tokenizer.json` beside the weights decodes tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import AliasGenerator, BaseModel, ConfigDict, Field, ValidationError, field_serializer

from app.common.context import Context
from app.common.diff import Segment, changes
from jobs.db.dialogue_models import DialogueSummary, HintValueSummary
from jobs.db.models import LabelSummary, NoteSummary, Run
from jobs.db.queries.dialogues import DialogueView
from jobs.labels import opened_hints
from jobs.labels.annotation_queue import HintKey
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.environments.base import Environment
from rl2f_core.environments.stateful import StatefulEnvironment
from rl2f_core.errors import RL2FError
from rl2f_core.types import ActionChoice, FrozenModel, Hint, JsonObject, LeakReport, Task, Turn, Verdict

MAX_BYTES_PER_CHARACTER = 4
VERDICT = ("correct", "parsed", "outcome", "score", "distance", "observation", "done")
"""Fields of a verdict that a turn has in JSON."""
_TASK_ERRORS = (RL2FError, ValidationError, LookupError, TypeError, ValueError, AttributeError)
"""Errors of an environment on a task of another version of it, or on an edited one."""


def _renamed(**names: str) -> ConfigDict:
    """Return the configuration of a model whose JSON has other names of fields of the engine."""
    generator = AliasGenerator(serialization_alias=lambda name: names.get(name, name))
    return ConfigDict(alias_generator=generator, serialize_by_alias=True)


class TaskPrompt(FrozenModel):
    """The text of a task."""

    text: str
    """As in the student's prompt, or the public data as JSON if the environment is not available."""
    system: str
    """The system message."""
    rendered: bool
    """`text` is the student's prompt."""


class DetectorFinding(LeakReport):
    """A leak that a detector found."""

    model_config = _renamed(leak_probability="probability", leak_threshold="threshold")
    leaked: bool = Field(exclude=True)
    span: tuple[int, int] | None = Field(None, exclude=True)
    logprob_gain: float | None = Field(None, exclude=True)
    error: str | None = Field(None, exclude=True)
    source: str
    """`run`, or the id of the rescore run that found it."""
    start: int | None = None
    """Start of the flagged span in the teacher's message."""
    end: int | None = None
    """End of the span, exclusive."""

    @classmethod
    def of(cls, source: str, report: LeakReport) -> DetectorFinding:
        """Return a report with its source."""
        start, end = report.span or (None, None)
        return cls(**dict(report), source=source, start=start, end=end)


class Findings(FrozenModel):
    """The detector findings of a hint, and whether it is a planted leak."""

    planted: str | None
    """Kind of the leak that teacher `leaky` planted."""
    leak_checked: bool
    """Every detector of the run checked it, or one flagged it."""
    leak_found: bool
    """A detector of the run flagged it."""
    findings: list[DetectorFinding]
    """The leaks that detectors found, at run time and later."""

    @classmethod
    def of(cls, hint: Hint, reports: Mapping[str, LeakReport]) -> Findings:
        """Return the findings of a hint from its reports by source."""
        checked, found = (hint.leak.is_complete, hint.leak.leaked) if hint.leak else (False, False)
        findings = [DetectorFinding.of(source, report) for source, report in reports.items()]
        return cls(planted=hint.planted, leak_checked=checked, leak_found=found, findings=findings)


class HintDetail(Hint, Findings):
    """A hint with what detectors and people found."""

    model_config = _renamed(text="hint", prompt_template="hint_prompt_template", error="hint_error")
    leak: LeakReport | None = Field(None, exclude=True)
    hint_bits: float | None
    """Information in the hint."""
    bits_left: float | None
    """log2 of the candidates after it."""
    determines_answer: bool
    """It leaves one candidate."""
    labels: Sequence[LabelSummary]
    """Labels of all annotators."""
    hint_values: Sequence[HintValueSummary]
    """Measured values; the one to show comes first."""

    @field_serializer("feedback")
    def _write_feedback(self, value: str) -> str:
        return value


class Reprompt(FrozenModel):
    """The prompt of a turn that does not continue the dialogue."""

    prompt_template: str
    """`name@version` of the template."""
    text: str | None
    """None if the template is unknown or has another version."""


class TurnDetail(Turn):
    """An attempt and the hint after it; a new field of the engine's turn is part of it."""

    model_config = _renamed(rewards="terms", total_reward="reward")
    token_ids: tuple[int, ...] = Field((), exclude=True)
    logprobs: tuple[float, ...] = Field((), exclude=True)
    verdict: Verdict = Field(exclude=True)
    hint: HintDetail | None
    """The hint after the attempt."""
    reprompt: Reprompt | None
    """The prompt of the attempt, if it does not continue the dialogue."""
    changes: list[Segment] | None
    """Word diff to the previous attempt."""
    correct: bool | None
    """None without a verdict."""
    parsed: str | None
    """The normalized answer; None if the attempt cannot be parsed."""
    outcome: str
    """`1` correct, `0` incorrect, `?` unparsable, `-` no verdict."""
    score: float | None
    """Partial credit in [0, 1]."""
    distance: float | None
    """Distance to the gold answer in [0, 1]."""
    observation: str | None
    """Reply of a stateful environment to the action; None without a state."""
    done: bool
    """The action ended the episode."""
    total_reward: float | None
    """Sum of the terms; None if it is unknown."""
    token_count: int
    """Number of the student's tokens."""

    @field_serializer("actions")
    def _write_actions(self, actions: tuple[ActionChoice, ...]) -> list[ActionChoice] | None:
        return list(actions) or None


class DialogueDetail(DialogueSummary):
    """A whole dialogue."""

    run_name: str
    """Name of the run."""
    split: str
    """Split of the task."""
    prompt: TaskPrompt
    """The text of the task."""
    turns: list[TurnDetail]
    """The turns."""
    notes: Sequence[NoteSummary]
    """Notes on the dialogue and its turns."""


def fields_of(value: BaseModel, model: type[BaseModel]) -> JsonObject:
    """Return the values of the fields that a model declares."""
    return {name: getattr(value, name) for name in model.model_fields}


def dialogue_detail(run: Run, view: DialogueView) -> DialogueDetail:
    """Return a whole dialogue."""
    task = view.event.task
    prompt = task_prompt(run, task)
    return DialogueDetail(
        **fields_of(view.row, DialogueSummary),
        run_name=run.name,
        split=task.split,
        prompt=prompt,
        turns=[_turn(view, turn, last, prompt) for turn, last in zip(view.turns, [None, *view.turns], strict=False)],
        notes=view.notes,
    )


def _turn(view: DialogueView, turn: Turn, last: Turn | None, prompt: TaskPrompt) -> TurnDetail:
    return TurnDetail(
        **{**fields_of(turn, Turn), "hint": _hint(view, turn)},
        reprompt=_reprompt(turn, last, prompt),
        changes=None if last is None else changes(last.attempt, turn.attempt),
        **{name: getattr(turn.verdict, name) for name in VERDICT},
        total_reward=turn.known_reward,
        token_count=len(turn.token_ids),
    )


def _reprompt(turn: Turn, last: Turn | None, prompt: TaskPrompt) -> Reprompt | None:
    if turn.prompt_template is None or last is None:
        return None
    text = _reprompt_text(turn.prompt_template, prompt, last.attempt, last.reply)
    return Reprompt(prompt_template=turn.prompt_template, text=text)


def _hint(view: DialogueView, turn: Turn) -> HintDetail | None:
    if turn.hint is None:
        return None
    return HintDetail(
        **fields_of(turn.hint, Hint) | fields_of(findings(view, turn), Findings),
        hint_bits=turn.hint_bits,
        bits_left=turn.bits_left,
        determines_answer=turn.determines_answer,
        labels=view.labels[turn.index],
        hint_values=view.hint_values[turn.index],
    )


def findings(view: DialogueView, turn: Turn) -> Findings:
    """Return the detector findings of a turn's hint."""
    assert turn.hint is not None
    return Findings.of(turn.hint, view.findings.get(turn.index, {}))


def record_opened(context: Context, hints: Iterable[HintKey], annotator: str) -> None:
    """Record that an annotator sees the findings of hints; see `jobs.labels.opened_hints.record`."""
    if not context.read_only:
        opened_hints.record(context.db, hints, annotator)


# -- task ------------------------------------------------------------------------------------------------------------
@lru_cache(64)
def _environment(yaml_text: str) -> Environment | None:
    """Return the environment of a configuration; None if it is not registered or its settings are invalid."""
    from rl2f_core import registry

    try:
        part = load_yaml(yaml_text)["environment"]
        part = {"type": part} if isinstance(part, str) else part
        component = registry.get("environment", part["type"])
        return component(component.Config.model_validate(part))
    except (*_TASK_ERRORS, yaml.YAMLError):
        return None


@lru_cache(64)
def _prompting(yaml_text: str) -> object:
    """Return the prompting of a configuration."""
    return (load_yaml(yaml_text).get("rollout") or {}).get("prompting")


def _system(yaml_text: str, environment: Environment) -> str:
    """Return the student's system message; prompts that list the valid actions have another one."""
    if _prompting(yaml_text) == "enumerate" and isinstance(environment, StatefulEnvironment):
        return environment.rules()
    return environment.system_prompt()


def task_prompt(run: Run, task: Task) -> TaskPrompt:
    """Return the text and the system message of a task."""
    environment = _environment(run.config)
    try:
        if environment is not None and environment.owns_environment(task.environment):
            text = environment.prompt(task.public)
            return TaskPrompt(text=text, system=_system(run.config, environment), rendered=True)
    except _TASK_ERRORS:
        pass
    return TaskPrompt(text=json.dumps(task.public, ensure_ascii=False, indent=2), system="", rendered=False)


def gold_answer(run: Run, task: Task) -> str | None:
    """Return the gold answer in the environment's format; None if the environment is not available."""
    environment = _environment(run.config)
    try:
        if environment is None or not environment.owns_environment(task.environment):
            return None
        return environment.gold_answer(task)
    except _TASK_ERRORS:
        return None


def _reprompt_text(template: str, prompt: TaskPrompt, attempt: str, hint: str) -> str | None:
    """Render a reprompt as `rollout.prompting` does; None without the task's text or this template version."""
    from rl2f_core.common import prompt_templates

    name = template.partition("@")[0]
    if not prompt.rendered or name not in prompt_templates.names():
        return None
    loaded = prompt_templates.load(name)
    if loaded.version != template:
        return None
    return loaded.render({"problem": prompt.text, "attempt": attempt.strip(), "hint": hint})[-1]["content"]


# -- tokens ----------------------------------------------------------------------------------------------------------
def token_texts(model: str, token_ids: Sequence[int]) -> list[str] | None:
    """Return the text that each token adds, with special tokens; None without a tokenizer on this machine.

    If several tokens form one character, the last of them has it and the others are empty.
    """
    path = _tokenizer_file(model)
    if path is None:
        return None
    try:
        tokenizer = _tokenizer(str(path), path.stat().st_mtime_ns)
    except Exception:  # the library raises plain Exception for an invalid file
        return None
    texts, start, decoded = [], 0, 0
    for end in range(1, len(token_ids) + 1):
        known = tokenizer.decode(list(token_ids[start:decoded]), skip_special_tokens=False)
        text = tokenizer.decode(list(token_ids[start:end]), skip_special_tokens=False)
        if text.endswith("\ufffd") and end < len(token_ids) and end - decoded < MAX_BYTES_PER_CHARACTER:
            texts.append("")
        else:
            texts.append(text[len(known) :])
            start, decoded = decoded, end
    return texts


def _tokenizer_file(model: str) -> Path | None:
    from rl2f_core.models.store.store import cache_dir

    for folder in (Path(model).expanduser(), cache_dir() / "models" / model.replace("/", "--")):
        if model and (folder / "tokenizer.json").is_file():
            return folder / "tokenizer.json"
    return None


@lru_cache(4)
def _tokenizer(path: str, modified: int) -> Any:
    """Load a tokenizer; `modified` (the file's time) keeps an older version of the file out of the cache."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(path)
