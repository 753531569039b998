"""Allowlist of the models, files and URLs that a form may name.

A form may name built-in models, hub ids, the workspace's runs and checkpoints, shipped prompts, and endpoints on this
machine or in the server's `RL2F_ENDPOINTS`. Otherwise a browser could send a key of this machine's environment, or a
request from inside its network, to any address.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from app.forms.errors import FieldError
from app.forms.own_data import stored_files
from app.forms.schema import Node, fields_of
from app.forms.schema import Path as FieldPath
from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.workspace import Workspace
from rl2f_core.common import prompt_templates
from rl2f_core.common.file_io import checked_path
from rl2f_core.environments.dataset.config import SAMPLE
from rl2f_core.environments.math import sources
from rl2f_core.errors import DataError, RL2FError, shorten_repr
from rl2f_core.leaks.mentions.model import read_weights
from rl2f_core.models.llms.protocol import LOOPBACK
from rl2f_core.models.store.store import built_in, cache_dir, list_models
from rl2f_core.types import FrozenModel

ENDPOINTS = "RL2F_ENDPOINTS"
"""Environment variable of the server with the base URLs that a form may name, separated by spaces or commas."""
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RUNS_SHOWN = 100
"""Newest runs whose checkpoints a form offers; older ones can be named in the YAML."""


class Option(FrozenModel):
    """A value that a field of the form accepts."""

    value: str
    """The value."""
    label: str
    note: str
    """What it is."""


# -- what a form offers ------------------------------------------------------------------------------------------------
def list_options(db: Database, workspace: Workspace) -> dict[str, list[Option]]:
    """List the accepted values of the fields whose `known` names a list."""
    return {
        "models": list_model_options(),
        "checkpoints": list_checkpoints(db, workspace),
        "endpoints": _named(_listed_endpoints()),
        "prompts": _named(prompt_templates.names()),
        "detectors": list_detectors(workspace),
        "runs": list_runs(db),
        "data": list_datasets(db, workspace),
        "problems": _named(sources.known()),
        "questions": list_questions(workspace),
    }


def list_model_options() -> list[Option]:
    """List the built-in models and those in the model cache."""
    found: list[Option] = []
    for entry in list_models():
        state = f"{entry.bytes / 1e6:.1f} MB" if entry.path else "downloaded at the start"
        note = f"{entry.description}, {entry.license}; {state}"
        found.append(Option(value=entry.name, label=entry.name, note=note))
    return found


def list_checkpoints(db: Database, workspace: Workspace) -> list[Option]:
    """List the checkpoints of the newest training runs; the value is their directory."""
    found: list[Option] = []
    for run in _training_runs(db):
        for checkpoint in reversed(runs.checkpoints(db, run.id or 0)):
            folder = workspace.folder(run.folder) / checkpoint.path
            if refusal("checkpoints", str(folder), workspace) is None:
                found.append(_option_of(run, str(folder), checkpoint.name))
    return found


def list_datasets(db: Database, workspace: Workspace) -> list[Option]:
    """List the datasets of the newest training runs; the value is their directory."""
    found: list[Option] = []
    for run in _training_runs(db):
        for file in sorted((workspace.folder(run.folder) / "datasets").glob("*/dataset.json")):
            if refusal("data", str(file.parent), workspace) is None:
                found.append(_option_of(run, str(file.parent), file.parent.name))
    return found


def list_detectors(workspace: Workspace) -> list[Option]:
    """List the workspace's fitted versions of detector `mentions`, the newest first; the value is the file."""
    found: list[Option] = []
    for path in reversed(workspace.fitted_detectors()):
        with contextlib.suppress(RL2FError):
            weights = read_weights(path)
            note = f"threshold {weights.threshold:.2f}"
            found.append(Option(value=str(path), label=weights.name, note=note))
    return found


def list_questions(workspace: Workspace) -> list[Option]:
    """List the shipped sample and the uploaded files of questions, newest first; the value is the path."""
    files = sorted(stored_files(workspace), key=lambda path: -path.stat().st_mtime)
    uploaded: list[Option] = [Option(value=str(path), label=path.name, note="uploaded") for path in files]
    return [*_named([SAMPLE]), *uploaded]


def list_runs(db: Database) -> list[Option]:
    """List the newest runs with dialogues of their own; the value is the name of their run directory."""
    rows = runs.newest(db, RUNS_SHOWN, without=("export", "model_export", "rescore"))
    return [Option(value=row.folder, label=f"{row.id} · {row.name}", note=row.environment) for row in rows]


def _training_runs(db: Database) -> list[Run]:
    return list(runs.page(db, runs.RunFilter(kind="train"), limit=RUNS_SHOWN).rows)


def _option_of(run: Run, value: str, name: str) -> Option:
    return Option(value=value, label=f"{run.id}:{name}", note=f"{run.name}, {run.environment}")


def _named(names: Iterable[str]) -> list[Option]:
    return [Option(value=name, label=name, note="") for name in names]


# -- checks ------------------------------------------------------------------------------------------------------------
def refusal(known: str, value: str, workspace: Workspace) -> str | None:
    """Return why a field whose `known` names a list must not have a value; None if it may."""
    is_permitted, text = RULES[known]
    if is_permitted(value, workspace):
        return None
    names = NAMES[known]() if known in NAMES else ()
    return text.format(value=shorten_repr(value, 80), known=", ".join(names))


def _is_run(name: str, workspace: Workspace) -> bool:
    """Return whether a name is that of a run directory."""
    is_name = "\0" not in name and Path(name).name == name and name != ".."
    folder = workspace.folder(name) if is_name else None
    return folder is not None and _is_below(folder, workspace.runs) and (folder / "config.yaml").is_file()


def _is_model(name: str, workspace: Workspace) -> bool:
    """Return whether a name is that of a model; directories outside the model cache are refused."""
    is_cached = Path(name).is_absolute() and _is_below(Path(name), cache_dir() / "models")
    is_hub_id = bool(HUB_ID.fullmatch(name)) and not Path(name).exists()
    return is_cached or is_hub_id or name in built_in() or name in _model_names()


def _is_endpoint(url: str, workspace: Workspace) -> bool:
    """Return whether a URL is that of an endpoint on this machine, or listed by the server."""
    try:
        parts = urlsplit(url)
        is_local = parts.scheme in ("http", "https") and parts.hostname in LOOPBACK
    except ValueError:
        is_local = False
    return is_local or url.rstrip("/") in _listed_endpoints()


def _is_dataset(name: str, workspace: Workspace) -> bool:
    return bool(STAGE_NAME.fullmatch(name)) or _is_artifact(name, workspace, "datasets", "dataset.json")


def _model_names() -> list[str]:
    return [entry.name for entry in list_models()]


NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "models": _model_names, "prompts": prompt_templates.names, "problems": sources.known,
}  # fmt: skip
RULES: dict[str, tuple[Callable[[str, Workspace], bool], str]] = {
    "models": (
        _is_model,
        "is not a known model: {value}; known: {known}, or a hub id such as org/name. Directories outside the model "
        "cache are not loaded",
    ),
    "endpoints": (
        _is_endpoint,
        f"is neither on this machine nor listed: {{value}}; start the server with {ENDPOINTS} set to the permitted "
        "base URLs, or run the YAML from the command line",
    ),
    "prompts": (
        lambda name, _: name in prompt_templates.names(),
        "is not a shipped prompt: {value}; known: {known}",
    ),
    "problems": (
        lambda name, _: name in sources.known(),
        "is not a known set of problems: {value}; known: {known}. Files are read from the command line only",
    ),
    "runs": (_is_run, "is not a run of this workspace: {value}; choose one from the list"),
    "checkpoints": (
        lambda folder, workspace: _is_artifact(folder, workspace, "checkpoints", "adapter_model.safetensors"),
        "is not a checkpoint of a known run: {value}; choose one from the list",
    ),
    "data": (
        _is_dataset,
        "is not a dataset of a known run: {value}; choose an earlier distill stage or one of the list. Other files are "
        "read from the command line only",
    ),
    "detectors": (
        lambda name, workspace: name in map(str, workspace.fitted_detectors()),
        "is not a fitted detector of this workspace: {value}; choose one from the list",
    ),
    "questions": (
        lambda name, workspace: name == SAMPLE or name in map(str, stored_files(workspace)),
        "is not an uploaded file of questions: {value}; upload it under Own data. Other files are read from the "
        "command line only",
    ),
    "files": (
        lambda *_: False,
        "is a file or directory, which a form cannot name: {value}; leave it empty for the default",
    ),
    "commands": (
        lambda *_: False,
        "is a program, which a form cannot start: {value}; run the YAML from the command line",
    ),
}
"""List of a field → whether it may have a value, and the error if not."""


def source_errors(node: Node, data: object, workspace: Workspace) -> list[FieldError]:
    """Return an error for each value that its field does not permit."""
    messages = ((path, refusal(known, value, workspace)) for path, known, value in _sources(node, data, ()))
    return [FieldError(path, message) for path, message in messages if message is not None]


def _sources(node: Node, data: object, path: FieldPath) -> Iterator[tuple[FieldPath, str, str]]:
    """Yield path, list and value of each field marked `known`."""
    if node.get("known"):
        if isinstance(data, str):
            yield path, node["known"], data
        return
    below: Iterable[tuple[str | int, Node, object]] = ()
    if node["kind"] in ("object", "component") and isinstance(data, Mapping):
        below = ((f["key"], f["node"], data.get(f["key"])) for f in fields_of(node, data))
    elif node["kind"] == "list" and isinstance(data, list | tuple):
        below = ((i, node["item"], item) for i, item in enumerate(data))
    elif node["kind"] == "tuple" and isinstance(data, list | tuple):
        below = ((i, item, value) for i, (item, value) in enumerate(zip(node["items"], data, strict=False)))
    elif node["kind"] == "map" and isinstance(data, Mapping):
        below = ((str(key), node["value"], value) for key, value in data.items())
    elif node["kind"] == "union":
        for option in node["options"]:
            yield from _sources(option, data, path)
    for key, inside, value in below:
        yield from _sources(inside, value, (*path, key))


def _listed_endpoints() -> list[str]:
    return [url.rstrip("/") for url in re.split(r"[\s,]+", os.environ.get(ENDPOINTS, "")) if url]


def _is_artifact(name: str, workspace: Workspace, kind: str, file: str) -> bool:
    """Return whether a path is `runs/RUN/KIND/NAME` of the workspace and contains a file."""
    path = Path(name)
    if "\0" in name or not path.is_absolute() or not _is_below(path, workspace.runs):
        return False
    parts = path.resolve().relative_to(workspace.runs.resolve()).parts
    try:
        folder = checked_path(path.parent.parent, f"{kind}/{path.name}")
    except DataError:
        return False
    return len(parts) == 3 and parts[1] == kind and (folder / file).is_file()


def _is_below(path: Path, root: Path) -> bool:
    """Return whether a path, links followed, is below a directory."""
    try:
        return path.resolve().is_relative_to(root.resolve()) and path.resolve() != root.resolve()
    except (OSError, ValueError, RuntimeError):
        return False
