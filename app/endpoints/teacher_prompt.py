"""The prompt that a model teacher read before a hint, rebuilt from the stored dialogue."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.dialogue.teachers.base import FeedbackRequest
from rl2f_core.errors import RL2FError
from rl2f_core.evaluation.counterfactual.config import inherit_settings
from rl2f_core.evaluation.counterfactual.fork_points import find_dialogue, fork_point_at
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import FinishReason, FrozenModel, Hint, Message, Turn

UNAVAILABLE = "The prompt cannot be rebuilt: "


class TeacherPrompt(FrozenModel):
    """What the teacher read before it wrote a hint."""

    messages: list[Message]
    """The exact prompt; empty if there is none, or if it is not available."""
    notes: list[str]
    """Where the prompt comes from, and what it omits or truncates."""


def teacher_prompt(folder: RunDir, event: DialogueEvent, turn: int) -> TeacherPrompt:
    """Return the prompt before a stored hint.

    A prompt is not stored. It depends only on the template, whose hash is stored, on the task and on the turns before
    the hint, so it is rendered again.

    Args:
        folder: The run.
        event: The dialogue.
        turn: 0-based turn of the hint.
    """
    hint = event.dialogue.turns[turn].hint
    assert hint is not None
    if hint.prompt_template is None:
        note = f"Teacher {hint.teacher}: no prompt, because no model wrote this message."
        return TeacherPrompt(messages=[], notes=[note])
    try:
        origin = fork_point_at(find_dialogue(folder, event.id), turn)  # the database replaces null characters
        settings = inherit_settings(folder, event.phase, event.stage, event.step, event.task.id)
        config, environment = (_component(name, settings[name]) for name in ("teacher", "environment"))
        if config.type != hint.teacher:
            return _unavailable(f"the run's teacher is {config.type}, and {hint.teacher} wrote this message.")
        request = FeedbackRequest(origin.task, origin.prefix(None), origin.dialogue.seed, reveals_verdict=origin.oracle)
        made = registry.get("environment", environment.type)(environment)
        built = registry.get("teacher", config.type).build_prompt(config, made, request)
    except (RL2FError, ValidationError) as error:
        return _unavailable(str(error))
    if built is None or built[0] != hint.prompt_template:
        return _unavailable(f"the template {hint.prompt_template} has changed since.")
    source = f"Rebuilt from the stored dialogue; the template {built[0]} is unchanged."
    return TeacherPrompt(messages=list(built[1]), notes=[source, *_omissions(config, request.turns, hint)])


def _component(category: str, values: dict[str, object]) -> ComponentConfig:
    config: ComponentConfig = registry.get(category, str(values["type"])).Config.model_validate(values)
    return config


def _unavailable(reason: str) -> TeacherPrompt:
    return TeacherPrompt(messages=[], notes=[UNAVAILABLE + reason])


def _omissions(config: ComponentConfig, turns: Sequence[Turn], hint: Hint) -> list[str]:
    """Return one sentence per part that the prompt omits, and per truncated text."""
    config = getattr(config, "base", config)
    sees, count = getattr(config, "visibility", None), len(turns)
    notes, shown = [], turns
    if sees is not None and sees.dialogue == "last" and count > 1:
        notes.append(f"It contains only attempt {count} of {count} (sees.dialogue: last).")
        shown = turns[-1:]
    if sees is not None and sees.attempt == "answer":
        notes.append("It contains only the parsed answer of an attempt (sees.attempt: answer).")
    truncated = [str(turn.index + 1) for turn in shown if turn.finish_reason is FinishReason.LENGTH]
    if truncated:
        notes.append(f"Truncated at the student's token limit: attempt {', '.join(truncated)}.")
    limit, usage = getattr(config, "max_new_tokens", None), hint.usage
    if limit is not None and usage is not None and usage.requests <= 1 and usage.completion_tokens >= limit:
        notes.append(f"The teacher's message was truncated at its limit of {limit} tokens.")
    return notes
