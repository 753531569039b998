"""Checkpoints for chats: known base models and the checkpoints of the workspace's runs, never a path."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from jobs.chat.model_process.protocol import CHECKPOINT_REF, MAX_SPEAKERS, MAX_TEXT, ChatSampling, ModelSource, Strict
from jobs.db.queries import runs
from rl2f_core.errors import ConfigError, RunError, UnknownNameError

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.db.models import Checkpoint, Run
    from jobs.workspace import Workspace

RUNS_SHOWN = 100
"""Maximum number of listed runs, newest first; the URL can name older ones."""


class ChatSettings(Strict):
    """Settings of a chat."""

    model: str = Field(min_length=1, max_length=500)
    """Name of the base model in the model store or in a run."""
    speakers: tuple[str, ...] = Field(("base",), min_length=1, max_length=MAX_SPEAKERS)
    """`base` and checkpoints `RUN:stage@step`."""
    sampling: ChatSampling = ChatSampling()
    system: str = Field("", max_length=MAX_TEXT)
    """System message; an interactive task uses the environment's."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    source: str = ""
    """Source of an interactive task's configuration: `run:17` or `preset:quickstart`."""
    split: Literal["train", "validation", "test"] = "test"
    index: int = Field(0, ge=0, lt=2**31)
    max_turns: int = Field(4, ge=1, le=64)
    """Maximum attempts at an interactive task."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Environment, leak_detection, reward and rollout of an interactive task, from `source`."""


def settings_from(data: dict[str, Any]) -> ChatSettings:
    """Validate settings; raises `ConfigError` naming each wrong field."""
    try:
        settings = ChatSettings.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"The chat's settings are wrong: {problems}.") from error
    for speaker in settings.speakers:
        if not re.fullmatch(CHECKPOINT_REF, speaker):
            raise ConfigError(
                "This is no checkpoint.", value=speaker, known=["base", "RUN:stage@step, e.g. 17:rl2f@20"]
            )
    if len(set(settings.speakers)) != len(settings.speakers):
        raise ConfigError("A checkpoint is named twice.", value=list(settings.speakers), fix="Name each once.")
    return settings


@dataclass(frozen=True)
class RunCheckpoints:
    """A run with its usable checkpoints."""

    run: int
    name: str
    model: str
    environment: str
    checkpoints: list[str] = field(default_factory=list)


def run_choices(db: Database, workspace: Workspace) -> list[RunCheckpoints]:
    """Return the newest training runs with checkpoints, newest first."""
    found = []
    for run in runs.page(db, runs.RunFilter(kind="train"), limit=RUNS_SHOWN).rows:
        if run.id is not None:
            names = [c.name for c in runs.checkpoints(db, run.id) if _folder(workspace, run, c) is not None]
            if names:
                found.append(RunCheckpoints(run.id, run.name, run.model, run.environment, names))
    return found


def known_models(db: Database) -> list[str]:
    """Return the names of the downloaded models and of the models of all runs."""
    from rl2f_core.model_store.store import list_models

    here = [entry.name for entry in list_models() if entry.path is not None]
    return list(dict.fromkeys([*here, *(name for name in runs.facets(db)["models"] if name)]))


ResolvedCheckpoints = dict[str, tuple[str, ModelSource]]
"""Checkpoint → its model name in requests, and its weights."""


def resolve_checkpoints(db: Database, workspace: Workspace, settings: ChatSettings) -> ResolvedCheckpoints:
    """Return the weights of all checkpoints of a chat.

    Raises `UnknownNameError` for an unknown model or checkpoint, `RunError` for an unknown run or one with another
    base model.
    """
    if settings.model not in (models := known_models(db)):
        raise UnknownNameError("This model is not known to the workspace.", value=settings.model, known=models)
    found: ResolvedCheckpoints = {}
    for speaker in settings.speakers:
        if speaker == "base":
            found[speaker] = settings.model, ModelSource(base=settings.model, device=settings.device)
            continue
        number, _, name = speaker.partition(":")
        run = runs.get(db, int(number))
        if run.model != settings.model:
            raise RunError(
                f"Run {run.id} was trained on {run.model}, and this chat uses {settings.model}.",
                value=speaker,
                fix="Start a chat with that model.",
            )
        there = {c.name: c for c in runs.checkpoints(db, int(number))}
        if name not in there:
            raise UnknownNameError(f"Run {run.id} has no such checkpoint.", value=name, known=sorted(there))
        folder = _folder(workspace, run, there[name])
        if folder is None:
            raise UnknownNameError(
                "The weights of this checkpoint are not on the disk any more.", value=speaker, fix="Choose another."
            )
        adapter = f"{speaker}#{there[name].sha256[:12]}"  # other weights under the same name are another adapter
        found[speaker] = adapter, ModelSource(base=settings.model, adapter=folder, device=settings.device)
    return found


def _folder(workspace: Workspace, run: Run, checkpoint: Checkpoint) -> str | None:
    """Return the checkpoint's directory; None if it is missing or outside the run directory."""
    root = workspace.folder(run.folder).resolve()
    folder = (root / checkpoint.path).resolve()
    inside = (
        folder.is_relative_to(root)
        and root.is_relative_to(workspace.runs.resolve())
        and root != workspace.runs.resolve()
    )
    return str(folder) if inside and (folder / "adapter_model.safetensors").is_file() else None
