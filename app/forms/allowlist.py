"""Allowlist of what a form may name: known models, the workspace's runs and checkpoints, shipped prompts, and
endpoints on this machine or in the server's `RL2F_ENDPOINTS`. Nothing else is read, and nobody else is asked: else a
browser could send a key of this machine's environment, or a request from inside its network, wherever it likes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from app.forms.errors import FieldError, fields_of
from app.forms.schema import Node
from jobs.workspace import Workspace
from rl2f_core.errors import shorten

if TYPE_CHECKING:
    from jobs.db.engine import Database

ENDPOINTS = "RL2F_ENDPOINTS"
"""Environment variable of the server with the base URLs that a form may name, separated by spaces or commas."""
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""The form of a hub id, `org/name`."""
RUNS_SHOWN = 100
"""Runs whose checkpoints a form offers, newest first; older ones can still be named in the YAML."""


@dataclass(frozen=True)
class Choice:
    """One entry of a dropdown."""

    value: str
    label: str
    note: str = ""


def known_models() -> list[Choice]:
    """Built-in models and those in the model cache."""
    from rl2f_core.model_store.store import list_models

    found = []
    for entry in list_models():
        state = f"{entry.bytes / 1e6:.1f} MB" if entry.path else "is fetched at the start"
        found.append(Choice(entry.name, entry.name, f"{entry.description}, {entry.license}; {state}"))
    return found


def known_checkpoints(db: Database, workspace: Workspace) -> list[Choice]:
    """The checkpoints of the newest training runs; the value is the folder that a configuration names."""
    from jobs.db.queries import runs

    found = []
    for run in runs.page(db, runs.RunFilter(kind="train"), limit=RUNS_SHOWN).rows:
        if run.id is None:
            continue
        for checkpoint in reversed(runs.checkpoints(db, run.id)):
            folder = workspace.folder(run.folder) / checkpoint.path
            if adapter_refusal(str(folder), workspace) is None:
                found.append(Choice(str(folder), f"{run.id}:{checkpoint.name}", f"{run.name}, {run.environment}"))
    return found


def known_runs(db: Database) -> list[Choice]:
    """The newest runs that hold dialogues of their own; the value is the name of the folder."""
    from jobs.db.queries import runs

    rows = runs.page(db, limit=RUNS_SHOWN).rows
    return [
        Choice(row.folder, f"{row.id} · {row.name}", row.environment)
        for row in rows
        if row.kind not in ("export", "rescore")
    ]


def run_refusal(name: str, workspace: Workspace) -> str | None:
    """Return why a form may not name this run directory, or None if it is one of the workspace's runs."""
    plain = "\0" not in name and Path(name).name == name and name != ".."
    if plain and _below(workspace.folder(name), workspace.runs) and (workspace.folder(name) / "config.yaml").is_file():
        return None
    return f"is no run of this workspace: {shorten(repr(name), 80)}; choose one from the list"


def model_refusal(name: str) -> str | None:
    """Why a model may not be loaded from a form, or None where it may."""
    from rl2f_core.model_store.store import cache_dir, list_models

    known = [entry.name for entry in list_models()]
    if name in known:
        return None
    if Path(name).is_absolute() and _below(Path(name), cache_dir() / "models"):
        return None
    if HUB_ID.fullmatch(name) and not Path(name).exists():
        return None
    return (
        f"is no known model: {shorten(repr(name), 80)}; known: {', '.join(known)}, or a hub id such as org/name. "
        "Folders outside the model cache are not loaded"
    )


def adapter_refusal(folder: str, workspace: Workspace) -> str | None:
    """Why an adapter may not be loaded from a form, or None where it is a checkpoint of one of the workspace's runs."""
    path = Path(folder)
    refusal = f"is no checkpoint of a known run: {shorten(repr(folder), 80)}; choose one from the list"
    if "\0" in folder or not path.is_absolute() or not _below(path, workspace.runs):
        return refusal
    parts = path.resolve().relative_to(workspace.runs.resolve()).parts
    if len(parts) != 3 or parts[1] != "checkpoints" or not (path / "adapter_model.safetensors").is_file():
        return refusal
    return None


def known_data(db: Database, workspace: Workspace) -> list[Choice]:
    """The data sets of the newest training runs; the value is the folder that a configuration names."""
    from jobs.db.queries import runs

    found = []
    for run in runs.page(db, runs.RunFilter(kind="train"), limit=RUNS_SHOWN).rows:
        for made in sorted((workspace.folder(run.folder) / "datasets").glob("*/dataset.json")):
            if data_refusal(str(made.parent), workspace) is None:
                label = f"{run.id}:{made.parent.name}"
                found.append(Choice(str(made.parent), label, f"{run.name}, {run.environment}"))
    return found


def data_refusal(name: str, workspace: Workspace) -> str | None:
    """Why a data set may not be read from a form, or None where it is a stage's name or lies in one of the runs."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):  # of a stage: the configuration knows which there are
        return None
    path = Path(name)
    if "\0" not in name and path.is_absolute() and _below(path, workspace.runs):
        parts = path.resolve().relative_to(workspace.runs.resolve()).parts
        if len(parts) == 3 and parts[1] == "datasets" and (path / "dataset.json").is_file():
            return None
    return (
        f"is no data set of a known run: {shorten(repr(name), 80)}; take an earlier distill stage or one of the list. "
        "Other files are read from the command line alone"
    )


def known_endpoints() -> list[Choice]:
    """The endpoints that the server's environment lists."""
    return [Choice(url, url) for url in _listed()]


def _listed() -> list[str]:
    return [url.rstrip("/") for url in re.split(r"[\s,]+", os.environ.get(ENDPOINTS, "")) if url]


def endpoint_refusal(url: str) -> str | None:
    """Why a form may not have an endpoint asked, or None where it is on this machine or listed."""
    from rl2f_core.llms.openai_api import LOOPBACK

    try:
        parts = urlsplit(url)
        on_this_machine = parts.scheme in ("http", "https") and parts.hostname in LOOPBACK
    except ValueError:
        on_this_machine = False
    if on_this_machine or url.rstrip("/") in _listed():
        return None
    return (
        f"is neither on this machine nor listed: {shorten(repr(url), 80)}; start the server with {ENDPOINTS} set to "
        "the base URLs that may be asked, or run the YAML from the command line"
    )


def known_prompts() -> list[Choice]:
    """The shipped prompt templates."""
    from rl2f_core.teachers import prompt_templates

    return [Choice(name, name) for name in prompt_templates.names()]


def prompt_refusal(name: str) -> str | None:
    """Why a form may not have a prompt template read, or None where it is a shipped one."""
    known = [choice.value for choice in known_prompts()]
    if name in known:
        return None
    return f"is no shipped prompt: {shorten(repr(name), 80)}; known: {', '.join(known)}"


def known_problems() -> list[Choice]:
    """The sets of mathematical problems that are known by name."""
    from rl2f_core.environments.math import sources

    return [Choice(name, name) for name in sources.known()]


def problems_refusal(name: str) -> str | None:
    """Why a form may not have problems read, or None where they are known by name."""
    known = [choice.value for choice in known_problems()]
    if name in known:
        return None
    return (
        f"is no known set of problems: {shorten(repr(name), 80)}; known: {', '.join(known)}. Files are read from the "
        "command line alone"
    )


def file_refusal(name: str) -> str:
    """Why a form may not name a file or a folder of the server's machine."""
    return f"is a file or folder, and a form names none: {shorten(repr(name), 80)}; leave it empty for what is usual"


def _below(path: Path, root: Path) -> bool:
    """Whether a path, links followed, lies below a folder."""
    try:
        return path.resolve().is_relative_to(root.resolve()) and path.resolve() != root.resolve()
    except (OSError, ValueError, RuntimeError):
        return False


def source_errors(node: Node, data: Any, workspace: Workspace) -> list[FieldError]:
    """An error for every value in a field marked `known` that is not known."""
    refusals = {
        "models": model_refusal, "endpoints": endpoint_refusal, "prompts": prompt_refusal, "files": file_refusal,
        "problems": problems_refusal,
    }  # fmt: skip
    stored = {"runs": run_refusal, "checkpoints": adapter_refusal, "data": data_refusal}
    errors = []
    for path, kind, value in _sources(node, data, ()):
        refusal = refusals[kind](value) if kind in refusals else stored[kind](value, workspace)
        if refusal is not None:
            errors.append(FieldError(path, refusal))
    return errors


def _sources(node: Node, data: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    if node.get("known"):
        if isinstance(data, str):
            yield path, node["known"], data
        return
    below: Iterable[tuple[str | int, Node, Any]] = ()
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
