"""Checkpoints for chats: known base models and the checkpoints of the workspace's runs, never a path."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from jobs.db.errors import NotFoundError
from jobs.db.queries import runs
from jobs.model_server.protocol import ModelSource
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.loading import validate_config
from rl2f_core.errors import ConfigError, RL2FError, RunError
from rl2f_core.models.store.conversion import conversion_name
from rl2f_core.models.store.store import is_loadable, list_models
from rl2f_core.run.directory import RunDir
from rl2f_core.types import FrozenModel, JsonObject, Split

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.db.models import Checkpoint, Run
    from jobs.workspace import Workspace

MAX_TEXT = 20_000
"""Maximum characters of one message."""
MAX_CHECKPOINTS = 4
"""The base model and three checkpoints."""
CHECKPOINT_REF = r"base|[1-9][0-9]{0,11}:[A-Za-z0-9][A-Za-z0-9_-]{0,63}@[0-9]{1,9}"
"""`base` or `RUN:stage@step`."""
RUNS_SHOWN = 100
"""Maximum number of listed runs, newest first; the URL can name older ones."""


class ChatSampling(BaseConfig):
    """Sampling settings of all checkpoints."""

    max_new_tokens: int = Field(256, ge=1, le=4096)
    """Tokens of one answer."""
    temperature: float = Field(0.7, ge=0, le=10)
    """0 selects the most likely token."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling."""
    seed: int = Field(0, ge=0, lt=2**31)
    """The same for all checkpoints."""


class ChatSettings(BaseConfig):
    """Settings of a chat."""

    model: str = Field(min_length=1, max_length=500)
    """Name of the base model in the model store or in a run."""
    checkpoints: tuple[str, ...] = Field(("base",), min_length=1, max_length=MAX_CHECKPOINTS)
    """`base` and checkpoints `RUN:stage@step`."""
    sampling: ChatSampling = ChatSampling()
    system: str = Field("", max_length=MAX_TEXT)
    """System message; an interactive task uses the environment's."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    source: str = ""
    """Source of an interactive task's configuration: `run:17` or `preset:quickstart`."""
    split: Split = "test"
    index: int = Field(0, ge=0, lt=2**31)
    max_turns: int = Field(4, ge=1, le=64)
    """Maximum attempts at an interactive task."""
    config: JsonObject = Field(default_factory=dict)
    """Environment, leak_detection, reward and rollout of an interactive task, from `source`."""


def parse_settings(data: JsonObject) -> ChatSettings:
    """Validate settings; raises `ConfigError` naming each wrong field."""
    settings = validate_config(ChatSettings, data, fix="Correct the settings of the chat.")
    for name in settings.checkpoints:
        if not re.fullmatch(CHECKPOINT_REF, name):
            known = ["base", "RUN:stage@step, e.g. 17:rl2f@20"]
            raise ConfigError("This is not a checkpoint.", value=name, known=known)
    if len(set(settings.checkpoints)) != len(settings.checkpoints):
        raise ConfigError("A checkpoint is named twice.", value=list(settings.checkpoints), fix="Name each once.")
    return settings


class ChatRun(FrozenModel):
    """A run with the checkpoints that can chat."""

    run: int
    name: str
    model: str
    """Base model of its checkpoints."""
    environment: str
    checkpoints: list[str]
    """Names for `RUN:CHECKPOINT`, e.g. `rl2f@20` for `17:rl2f@20`."""


def run_choices(db: Database, workspace: Workspace) -> list[ChatRun]:
    """Return the newest training runs with checkpoints and a loadable base model, newest first."""
    choices = []
    for run in runs.page(db, runs.RunFilter(kind="train"), limit=RUNS_SHOWN).rows:
        names = [c.name for c in runs.checkpoints(db, run.id or 0) if _folder(workspace, run, c) is not None]
        if names and is_loadable(run.model):
            choices.append(
                ChatRun(run=run.id, name=run.name, model=run.model, environment=run.environment, checkpoints=names)
            )
    return choices


def known_models(db: Database) -> list[str]:
    """Return the names of the downloaded models and of the loadable models of all runs."""
    downloaded = [entry.name for entry in list_models() if entry.path is not None]
    return list(dict.fromkeys([*downloaded, *filter(is_loadable, runs.facets(db)["models"])]))


ResolvedCheckpoints = dict[str, tuple[str, ModelSource]]
"""Checkpoint → its model name in requests, and its weights."""


def resolve_checkpoints(db: Database, workspace: Workspace, settings: ChatSettings) -> ResolvedCheckpoints:
    """Return the weights of all checkpoints of a chat.

    Raises `NotFoundError` for an unknown model or checkpoint, `RunError` for an unknown run or one with another
    base model.
    """
    if settings.model not in (models := known_models(db)):
        raise NotFoundError("This model is not known to the workspace.", value=settings.model, known=models)
    resolved: ResolvedCheckpoints = {}
    base = ModelSource(base=settings.model, device=settings.device)
    for ref in sorted(settings.checkpoints, key="base".__eq__):  # the base in conversion and dtype of the runs
        if ref == "base":
            resolved[ref] = base.base, base
            continue
        number, _, name = ref.partition(":")
        run = runs.get(db, int(number))
        if run.model != settings.model:
            raise RunError(
                f"Run {run.id} was trained on {run.model}, and this chat uses {settings.model}.",
                value=ref,
                fix="Start a chat with that model.",
            )
        checkpoints = {c.name: c for c in runs.checkpoints(db, int(number))}
        if name not in checkpoints:
            raise NotFoundError(f"Run {run.id} has no such checkpoint.", value=name, known=sorted(checkpoints))
        folder = _folder(workspace, run, checkpoints[name])
        if folder is None:
            raise NotFoundError(
                "The weights of this checkpoint are not on the disk any more.", value=ref, fix="Choose another."
            )
        adapter = f"{ref}#{checkpoints[name].sha256[:12]}"  # the name changes with the weights
        converted = conversion_name(run.model, RunDir(workspace.folder(run.folder)).conversion)
        dtype = ((load_yaml(run.config) or {}).get("model") or {}).get("dtype", "auto")
        base = ModelSource(base=converted, dtype=dtype, device=settings.device)
        resolved[ref] = adapter, base.model_copy(update={"adapter": folder})
    return {ref: resolved[ref] for ref in settings.checkpoints}


def _folder(workspace: Workspace, run: Run, checkpoint: Checkpoint) -> str | None:
    """Return the checkpoint's directory; None if it is missing or has a link that leaves the run directory."""
    try:
        return str(RunDir(workspace.folder(run.folder)).checkpoint(checkpoint.name).resolve())
    except RL2FError:
        return None
