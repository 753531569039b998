"""Dialogues as JSON: task prompt, turns, hints, findings, labels and tokens, without privileged data.

Keys are the names of database columns. Nothing here loads a model: the environment is built from the run's
configuration, and the `tokenizer.json` beside the weights decodes tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import ValidationError
from typing_extensions import TypedDict

from app.common.context import Context
from app.common.diff import Segment, changes
from jobs.db.models import DialogueRow as StoredRow
from jobs.db.models import Run
from jobs.db.queries.dialogues import DialogueView
from jobs.labels import opened_hints
from jobs.labels.annotation_queue import HintKey
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.environments.base import Environment
from rl2f_core.environments.stateful import StatefulEnvironment
from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject, LeakReport, Task, Turn

T = TypeVar("T")
MAX_BYTES_PER_CHARACTER = 4
_TASK_ERRORS = (RL2FError, ValidationError, LookupError, TypeError, ValueError, AttributeError)
"""Errors of an environment on a task of another version of it, or on an edited one."""


class DialogueRow(TypedDict):
    """A dialogue as a list row; see `jobs.db.models.Dialogue`."""

    run: int
    event_id: str
    dialogue_id: str
    phase: str
    stage: str
    step: int
    checkpoint: str | None
    condition: str | None
    environment: str
    level: str
    group: str
    index: int
    stop_reason: str
    error: str | None
    policy: str
    seed: int
    solved_at: int | None
    length: int
    outcomes: str
    reward: float | None
    advantage: float | None
    leak_state: int
    label_count: int
    best_hint_value: float | None
    time: float


class TaskPrompt(TypedDict):
    """The text of a task."""

    text: str
    """As in the student's prompt, or the public data as JSON if the environment is not available."""
    system: str
    rendered: bool
    """`text` is the student's prompt."""


class TermRow(TypedDict):
    """A term of a turn's reward."""

    name: str
    score: float
    weight: float


class FindingRow(TypedDict):
    """A leak that a detector found."""

    source: str
    detector: str | None
    leak_type: str | None
    """`exact`, `equivalent`, `derivation` or `partial`; None if the detector cannot tell."""
    start: int | None
    end: int | None
    answer_fraction: float
    evidence: str
    action: str | None
    probability: float | None
    """Probability of a leak; None if the detector gives none."""
    threshold: float | None
    """Probability from which the hint is flagged."""


class Findings(TypedDict):
    """The detector findings of a hint, and whether it is a planted leak."""

    planted: str | None
    """Kind of the leak that teacher `leaky` planted."""
    leak_checked: bool
    leak_found: bool
    findings: list[FindingRow]


class LabelRow(TypedDict):
    """An annotator's label of a hint."""

    run: int
    event_id: str
    turn: int
    annotator: str
    label: str
    start: int | None
    end: int | None
    note: str
    blind: bool
    time: float


class HintValueRow(TypedDict):
    """A measured hint value."""

    run: int
    """The run that measured it."""
    checkpoint: str
    value: float
    low: float
    high: float
    n: int
    turns: int | None
    arms: dict[str, float]
    time: float


class NoteRow(TypedDict):
    """A note on a dialogue or a turn."""

    id: int
    event_id: str | None
    turn: int | None
    author: str
    text: str
    time: float


class HintDetail(Findings):
    """A hint."""

    feedback: str
    """The teacher's message."""
    hint: str
    """The message in the student's prompt; a leak action may have changed it."""
    teacher: str | None
    source_task: str | None
    hint_prompt_template: str | None
    usage: JsonObject | None
    hint_error: str | None
    hint_bits: float | None
    """Information in the hint; see `rl2f_core.types.Turn` for this and the next two."""
    bits_left: float | None
    determines_answer: bool
    labels: list[LabelRow]
    hint_values: list[HintValueRow]


class Reprompt(TypedDict):
    """The prompt of a turn that does not continue the dialogue."""

    prompt_template: str
    text: str | None
    """None if the template is unknown or has another version."""


class TurnDetail(TypedDict):
    """An attempt and the hint after it."""

    index: int
    attempt: str
    reprompt: Reprompt | None
    changes: list[Segment] | None
    """Word diff to the previous attempt."""
    finish_reason: str
    correct: bool | None
    parsed: str | None
    outcome: str
    """`1` correct, `0` incorrect, `?` unparsable, `-` no verdict."""
    score: float | None
    distance: float | None
    observation: str | None
    """Reply of a stateful environment to the action; None without a state."""
    done: bool
    """The action ended the episode."""
    actions: list[JsonObject] | None
    """Labeled actions of the prompt (`rl2f_core.types.ActionChoice`), if it lists them."""
    reflection: str | None
    """The reflector's text in the prompt, if there is a reflector."""
    reward: float | None
    terms: list[TermRow]
    advantage: float | None
    bits_used: float | None
    """See `rl2f_core.types.Turn`."""
    token_count: int
    hint: HintDetail | None


class DialogueDetail(DialogueRow):
    """A whole dialogue."""

    run_name: str
    task: str
    split: str
    prompt: TaskPrompt
    turns: list[TurnDetail]
    notes: list[NoteRow]


def columns(row: object, kind: type[T], **computed: object) -> T:
    """Return a database row as the TypedDict `kind`, with computed values; its key `run` is the column `run_id`."""
    names = [name for name in kind.__annotations__ if name not in computed]
    return cast(T, {name: getattr(row, "run_id" if name == "run" else name) for name in names} | computed)


def dialogue_row(row: StoredRow) -> DialogueRow:
    """Return a dialogue as a list row."""
    return columns(row, DialogueRow)


def dialogue_detail(run: Run, view: DialogueView) -> DialogueDetail:
    """Return a whole dialogue."""
    task, turns = view.event.task, view.turns
    prompt = task_prompt(run, task)
    return columns(
        view.row,
        DialogueDetail,
        run_name=run.name,
        task=task.id,
        split=task.split,
        prompt=prompt,
        turns=[_turn(view, turn, last, prompt) for turn, last in zip(turns, [None, *turns], strict=False)],
        notes=[columns(note, NoteRow) for note in view.notes],
    )


def _turn(view: DialogueView, turn: Turn, last: Turn | None, prompt: TaskPrompt) -> TurnDetail:
    verdict = turn.verdict
    return columns(
        turn,
        TurnDetail,
        reprompt=_reprompt(turn, last, prompt),
        changes=None if last is None else changes(last.attempt, turn.attempt),
        finish_reason=turn.finish_reason.value,
        correct=verdict.correct,
        parsed=verdict.parsed,
        outcome=verdict.outcome,
        score=verdict.score,
        distance=verdict.distance,
        observation=verdict.observation,
        done=verdict.done,
        actions=[choice.model_dump() for choice in turn.actions] or None,
        reward=turn.known_reward,
        terms=[columns(term, TermRow) for term in turn.rewards],
        token_count=len(turn.token_ids),
        hint=_hint(view, turn),
    )


def _reprompt(turn: Turn, last: Turn | None, prompt: TaskPrompt) -> Reprompt | None:
    if turn.prompt_template is None or last is None:
        return None
    text = _reprompt_text(turn.prompt_template, prompt, last.attempt, last.reply)
    return {"prompt_template": turn.prompt_template, "text": text}


def _hint(view: DialogueView, turn: Turn) -> HintDetail | None:
    hint = turn.hint
    if hint is None:
        return None
    return {
        **findings(view, turn),
        "feedback": hint.feedback,
        "hint": hint.text,
        "teacher": hint.teacher,
        "source_task": hint.source_task,
        "hint_prompt_template": hint.prompt_template,
        "usage": None if hint.usage is None else hint.usage.model_dump(),
        "hint_error": hint.error,
        "hint_bits": turn.hint_bits,
        "bits_left": turn.bits_left,
        "determines_answer": turn.determines_answer,
        "labels": [columns(label, LabelRow) for label in view.labels[turn.index]],
        "hint_values": [columns(value, HintValueRow) for value in view.hint_values[turn.index]],
    }


def record_opened(context: Context, hints: Iterable[HintKey], annotator: str) -> None:
    """Record that an annotator sees the findings of hints; see `jobs.labels.opened_hints.record`."""
    if not context.read_only:
        opened_hints.record(context.db, hints, annotator)


def findings(view: DialogueView, turn: Turn) -> Findings:
    """Return the detector findings of a hint."""
    leak = turn.hint.leak if turn.hint else None
    return {
        "planted": turn.hint.planted if turn.hint else None,
        "leak_checked": leak is not None and leak.is_complete,
        "leak_found": leak is not None and leak.leaked,
        "findings": [_finding(source, report) for source, report in view.findings.get(turn.index, {}).items()],
    }


def _finding(source: str, report: LeakReport) -> FindingRow:
    start, end = report.span or (None, None)
    scored = {"probability": report.leak_probability, "threshold": report.leak_threshold}
    return columns(report, FindingRow, source=source, start=start, end=end, **scored)


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


def _system(yaml_text: str, environment: Environment) -> str:
    """Return the student's system message; prompts that list the valid actions have another one."""
    rollout = load_yaml(yaml_text).get("rollout") or {}
    if rollout.get("prompting") == "enumerate" and isinstance(environment, StatefulEnvironment):
        return environment.rules()
    return environment.system_prompt()


def task_prompt(run: Run, task: Task) -> TaskPrompt:
    """Return the text and the system message of a task."""
    environment = _environment(run.config)
    try:
        if environment is not None and environment.owns_environment(task.environment):
            text = environment.prompt(task.public)
            return {"text": text, "system": _system(run.config, environment), "rendered": True}
    except _TASK_ERRORS:
        pass
    return {"text": json.dumps(task.public, ensure_ascii=False, indent=2), "system": "", "rendered": False}


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
    if not prompt["rendered"] or name not in prompt_templates.names():
        return None
    loaded = prompt_templates.load(name)
    if loaded.version != template:
        return None
    return loaded.render({"problem": prompt["text"], "attempt": attempt.strip(), "hint": hint})[-1]["content"]


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
