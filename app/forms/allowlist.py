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

from app.forms.errors import FieldError, fields_of
from app.forms.errors import Path as FieldPath
from app.forms.own_data import stored_files
from app.forms.schema import Node
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
            if check_checkpoint(str(folder), workspace) is None:
                found.append(_option_of(run, str(folder), checkpoint.name))
    return found


def list_datasets(db: Database, workspace: Workspace) -> list[Option]:
    """List the datasets of the newest training runs; the value is their directory."""
    found: list[Option] = []
    for run in _training_runs(db):
        for file in sorted((workspace.folder(run.folder) / "datasets").glob("*/dataset.json")):
            if check_dataset(str(file.parent), workspace) is None:
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
    rows = runs.page(db, limit=RUNS_SHOWN).rows
    return [
        Option(value=row.folder, label=f"{row.id} · {row.name}", note=row.environment)
        for row in rows
        if row.kind not in ("export", "model_export", "rescore", "train_detector")
    ]


def _training_runs(db: Database) -> list[Run]:
    return list(runs.page(db, runs.RunFilter(kind="train"), limit=RUNS_SHOWN).rows)


def _option_of(run: Run, value: str, name: str) -> Option:
    return Option(value=value, label=f"{run.id}:{name}", note=f"{run.name}, {run.environment}")


def _named(names: Iterable[str]) -> list[Option]:
    return [Option(value=name, label=name, note="") for name in names]


# -- checks: each returns None for a permitted value, otherwise the error message --------------------------------------
def check_run(name: str, workspace: Workspace) -> str | None:
    """Check the name of a run directory."""
    is_name = "\0" not in name and Path(name).name == name and name != ".."
    folder = workspace.folder(name) if is_name else None
    if folder and _is_below(folder, workspace.runs) and (folder / "config.yaml").is_file():
        return None
    return f"is no run of this workspace: {_shown(name)}; choose one from the list"


def check_model(name: str) -> str | None:
    """Check the name of a model; directories outside the model cache are refused."""
    known = [entry.name for entry in list_models()]
    is_cached = Path(name).is_absolute() and _is_below(Path(name), cache_dir() / "models")
    if name in built_in() or name in known or is_cached or (HUB_ID.fullmatch(name) and not Path(name).exists()):
        return None
    return (
        f"is no known model: {_shown(name)}; known: {', '.join(known)}, or a hub id such as org/name. "
        "Directories outside the model cache are not loaded"
    )


def check_checkpoint(folder: str, workspace: Workspace) -> str | None:
    """Check the directory of a checkpoint of the workspace's runs."""
    if _is_artifact(folder, workspace, "checkpoints", "adapter_model.safetensors"):
        return None
    return f"is no checkpoint of a known run: {_shown(folder)}; choose one from the list"


def check_detector(name: str, workspace: Workspace) -> str | None:
    """Check the path of a fitted version of detector `mentions` of the workspace."""
    if name in [str(path) for path in workspace.fitted_detectors()]:
        return None
    return f"is no fitted detector of this workspace: {_shown(name)}; choose one from the list"


def check_dataset(name: str, workspace: Workspace) -> str | None:
    """Check the name of a stage, or the directory of a dataset of the workspace's runs."""
    if STAGE_NAME.fullmatch(name) or _is_artifact(name, workspace, "datasets", "dataset.json"):
        return None
    return (
        f"is no dataset of a known run: {_shown(name)}; choose an earlier distill stage or one of the list. "
        "Other files are read from the command line only"
    )


def check_endpoint(url: str) -> str | None:
    """Check the URL of an endpoint: on this machine, or listed by the server."""
    try:
        parts = urlsplit(url)
        is_local = parts.scheme in ("http", "https") and parts.hostname in LOOPBACK
    except ValueError:
        is_local = False
    if is_local or url.rstrip("/") in _listed_endpoints():
        return None
    return (
        f"is neither on this machine nor listed: {_shown(url)}; start the server with {ENDPOINTS} set to "
        "the permitted base URLs, or run the YAML from the command line"
    )


def check_prompt(name: str) -> str | None:
    """Check the name of a shipped prompt template."""
    known = prompt_templates.names()
    return None if name in known else f"is no shipped prompt: {_shown(name)}; known: {', '.join(known)}"


def check_problems(name: str) -> str | None:
    """Check the name of a set of mathematical problems."""
    known = sources.known()
    if name in known:
        return None
    return (
        f"is no known set of problems: {_shown(name)}; known: {', '.join(known)}. Files are read from the "
        "command line only"
    )


def check_questions(name: str, workspace: Workspace) -> str | None:
    """Check the path of an uploaded file of questions."""
    if name == SAMPLE or name in [str(path) for path in stored_files(workspace)]:
        return None
    return (
        f"is no uploaded file of questions: {_shown(name)}; upload it under Own data. Other files are read from the "
        "command line only"
    )


def check_file(name: str) -> str:
    """Refuse any file or directory of the server's machine."""
    return f"is a file or directory, which a form cannot name: {_shown(name)}; leave it empty for the default"


def check_command(argument: str) -> str:
    """Refuse any program of the server's machine."""
    return f"is a program, which a form cannot start: {_shown(argument)}; run the YAML from the command line"


CHECKS: dict[str, Callable[[str], str | None]] = {
    "models": check_model,
    "endpoints": check_endpoint,
    "prompts": check_prompt,
    "files": check_file,
    "commands": check_command,
    "problems": check_problems,
}
WORKSPACE_CHECKS = {"runs": check_run, "checkpoints": check_checkpoint, "data": check_dataset,
                    "detectors": check_detector, "questions": check_questions}  # fmt: skip


def source_errors(node: Node, data: object, workspace: Workspace) -> list[FieldError]:
    """Return an error for each value that its field does not permit."""
    errors = []
    for path, known, value in _sources(node, data, ()):
        check = CHECKS.get(known)
        message = check(value) if check else WORKSPACE_CHECKS[known](value, workspace)
        if message is not None:
            errors.append(FieldError(path, message))
    return errors


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


def _shown(value: str) -> str:
    return shorten_repr(value, 80)
