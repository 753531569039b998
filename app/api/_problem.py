"""What a run's configuration says about its dialogues: the problem's words, the answer, the tokens' texts.

Nothing here loads a model: the environment is built from its part of the configuration, and tokens are read with the
`tokenizer.json` beside the model's weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rl2f_core.environments.base import Environment
from rl2f_core.errors import RL2FError
from rl2f_core.types import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.db.models import Run, TaskRow

_MISFIT = (RL2FError, ValidationError, LookupError, TypeError, ValueError, AttributeError)
"""What an environment may raise on a task that another version of it made, or that somebody edited."""


@lru_cache(64)
def _environment(yaml_text: str) -> Environment | None:
    """The environment of a run's configuration; None where it is not known here, or takes other settings by now."""
    import yaml

    from rl2f_core import registry

    try:
        part = yaml.safe_load(yaml_text)["environment"]
        part = {"type": part} if isinstance(part, str) else part
        component = registry.get("environment", part["type"])
        return component(component.Config.model_validate(part))
    except (*_MISFIT, yaml.YAMLError):
        return None


@dataclass(frozen=True)
class Shown:
    """A problem in words."""

    text: str
    """As the student read it, or the public half as JSON where its environment is not to be had."""
    system: str
    rendered: bool
    """`text` is what the student read."""


def shown(run: Run, problem: TaskRow) -> Shown:
    """The problem and the system message of a run."""
    environment = _environment(run.config)
    try:
        if environment is not None and environment.owns_environment(problem.environment):
            return Shown(environment.prompt(problem.public), environment.system_prompt(), True)
    except _MISFIT:
        pass
    return Shown(_json(problem.public), "", False)


def reprompt_template(template: str, problem: Shown, attempt: str, hint: str) -> str | None:
    """What `rollout.prompting.History.after` made of a turn: the words of a fresh prompt.

    None where the problem's words are not to be had, or no shipped template is of that name and version.
    """
    from rl2f_core.teachers import prompt_templates

    name = template.partition("@")[0]
    if not problem.rendered or name not in prompt_templates.names():
        return None
    prompt = prompt_templates.load(name)
    if prompt.version != template:
        return None
    return prompt.render({"problem": problem.text, "attempt": attempt.strip(), "hint": hint})[-1]["content"]


def answer(run: Run, problem: TaskRow) -> str | None:
    """The gold answer in the environment's words, or None where it is not to be had."""
    environment = _environment(run.config)
    try:
        if environment is None or not environment.owns_environment(problem.environment):
            return None
        return environment.gold_answer(
            Task(
                id=problem.task,
                environment=problem.environment,
                split=problem.split,  # type: ignore[arg-type]
                level=problem.level,
                public=problem.public,
                privileged=problem.privileged,
            )
        )
    except _MISFIT:
        return None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


# -- tokens ----------------------------------------------------------------------------------------------------------
def tokenizer_file(model: str) -> Path | None:
    """The `tokenizer.json` of a model that is on this machine; nothing is fetched."""
    from rl2f_core.model_store.store import cache_dir

    for folder in (Path(model).expanduser(), cache_dir() / "models" / model.replace("/", "--")):
        if model and (folder / "tokenizer.json").is_file():
            return folder / "tokenizer.json"
    return None


@lru_cache(4)
def _tokenizer(path: str, stamp: int) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(path)


def texts(model: str, token_ids: Sequence[int]) -> list[str] | None:
    """The text that each token adds, special tokens by their names; None where there is no tokenizer.

    A character that several tokens make together stands at the last of them, the others are empty.
    """
    path = tokenizer_file(model)
    if path is None:
        return None
    try:
        tokenizer = _tokenizer(str(path), path.stat().st_mtime_ns)
    except Exception:  # the library raises plain Exception for a file that is none of its own
        return None
    pieces, begin, read = [], 0, 0
    for end in range(1, len(token_ids) + 1):
        known = tokenizer.decode(list(token_ids[begin:read]), skip_special_tokens=False)
        text = tokenizer.decode(list(token_ids[begin:end]), skip_special_tokens=False)
        unfinished = text.endswith("\ufffd") and end < len(token_ids) and end - read < 4
        if unfinished:
            pieces.append("")
        else:
            pieces.append(text[len(known) :])
            begin, read = read, end
    return pieces
