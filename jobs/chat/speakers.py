"""Who may speak: the base models that are known, and the checkpoints of the studio's runs. Never a path."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from jobs.chat.protocol import MAX_SPEAKERS, MAX_TEXT, SPEAKER, ChatSampling, ModelRequest, Strict
from jobs.store import runs
from rl2f_core.errors import ConfigError, RunError, UnknownNameError

if TYPE_CHECKING:
    from jobs.database import Database
    from jobs.studio import Studio
    from jobs.tables import Checkpoint, Run

RUNS_SHOWN = 100
"""Runs whose checkpoints are offered, newest first; older ones can be named in the address."""


class ChatSettings(Strict):
    """What a conversation is held with."""

    model: str = Field(min_length=1, max_length=500)
    """Base model, by the name that the model store or a run has for it."""
    speakers: tuple[str, ...] = Field(("base",), min_length=1, max_length=MAX_SPEAKERS)
    """`base` and checkpoints `RUN:stage@step`."""
    sampling: ChatSampling = ChatSampling()
    system: str = Field("", max_length=MAX_TEXT)
    """System message; a played task has the environment's."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    source: str = ""
    """Played task: `run:17` or `preset:quickstart`, where its configuration is from."""
    split: Literal["train", "validation", "test"] = "test"
    index: int = Field(0, ge=0, lt=2**31)
    max_turns: int = Field(4, ge=1, le=64)
    """Played task: attempts allowed."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Played task: environment, leaks, reward and rollout, filled in from `source`."""


def settings_from(data: dict[str, Any]) -> ChatSettings:
    """Checked settings; raises `ConfigError` naming each bad field."""
    try:
        settings = ChatSettings.model_validate(data)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"The chat's settings are wrong: {told}.") from error
    for speaker in settings.speakers:
        if not re.fullmatch(SPEAKER, speaker):
            raise ConfigError("This is no speaker.", value=speaker, known=["base", "RUN:stage@step, e.g. 17:rl2f@20"])
    if len(set(settings.speakers)) != len(settings.speakers):
        raise ConfigError("A speaker is named twice.", value=list(settings.speakers), fix="Name each once.")
    return settings


@dataclass(frozen=True)
class RunChoice:
    """A run with checkpoints that can speak."""

    run: int
    name: str
    model: str
    environment: str
    checkpoints: list[str] = field(default_factory=list)


def run_choices(db: Database, studio: Studio) -> list[RunChoice]:
    """The newest training runs that have checkpoints, newest first."""
    found = []
    for run in runs.page(db, runs.RunFilter(kind="train"), limit=RUNS_SHOWN).rows:
        if run.id is not None:
            names = [c.name for c in runs.checkpoints(db, run.id) if _folder(studio, run, c) is not None]
            if names:
                found.append(RunChoice(run.id, run.name, run.model, run.environment, names))
    return found


def known_models(db: Database) -> list[str]:
    """Names of the models that are here, or that a run was made with."""
    from rl2f_core.models import list_models

    here = [entry.name for entry in list_models() if entry.path is not None]
    return list(dict.fromkeys([*here, *(name for name in runs.facets(db)["models"] if name)]))


@dataclass(frozen=True)
class Cast:
    """Speakers with their weights found."""

    model: ModelRequest
    adapters: dict[str, str | None]
    """Speaker → the adapter's name in the request, None for the base."""


def cast(db: Database, studio: Studio, settings: ChatSettings) -> Cast:
    """Find the weights of all speakers.

    Raises `UnknownNameError` for a model or checkpoint that is not known, `RunError` for an unknown run or one with
    another base model.
    """
    if settings.model not in (models := known_models(db)):
        raise UnknownNameError("This model is not known to the studio.", value=settings.model, known=models)
    adapters: dict[str, str | None] = {}
    folders: dict[str, str] = {}
    for speaker in settings.speakers:
        if speaker == "base":
            adapters[speaker] = None
            continue
        number, _, name = speaker.partition(":")
        run = runs.get(db, int(number))
        if run.model != settings.model:
            raise RunError(
                f"Run {run.id} was trained on {run.model}, and this chat speaks with {settings.model}.",
                value=speaker,
                fix="Start a chat with that model.",
            )
        there = {c.name: c for c in runs.checkpoints(db, int(number))}
        if name not in there:
            raise UnknownNameError(f"Run {run.id} has no such checkpoint.", value=name, known=sorted(there))
        folder = _folder(studio, run, there[name])
        if folder is None:
            raise UnknownNameError(
                "The weights of this checkpoint are not on the disk any more.", value=speaker, fix="Choose another."
            )
        adapter = f"{speaker}#{there[name].sha256[:12]}"  # other weights under the same name are another adapter
        adapters[speaker], folders[adapter] = adapter, folder
    return Cast(ModelRequest(name=settings.model, device=settings.device, adapters=folders), adapters)


def _folder(studio: Studio, run: Run, checkpoint: Checkpoint) -> str | None:
    """The checkpoint's folder below the run's, None where it is not there."""
    root = studio.folder(run.folder).resolve()
    folder = (root / checkpoint.path).resolve()
    inside = (
        folder.is_relative_to(root) and root.is_relative_to(studio.runs.resolve()) and root != studio.runs.resolve()
    )
    return str(folder) if inside and (folder / "adapter_model.safetensors").is_file() else None
