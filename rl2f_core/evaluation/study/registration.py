"""Versions of a study's file: the first one is stored before the first run, later ones with what they change."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from rl2f_core.common.file_io import checked_path, write_atomically
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.errors import DataError
from rl2f_core.evaluation.study.spec import Study, check_unchanged
from rl2f_core.types import FrozenModel

FILE = "registration.json"


class Version(FrozenModel):
    """One content of the file."""

    time: float
    """When it was first used, in seconds since 1970."""
    sha256: str
    finished_parts: int
    """Parts of the study that had finished before."""
    text: str


_VERSIONS = TypeAdapter(Annotated[list[Version], Field(min_length=1)])


def read_versions(folder: Path) -> list[Version]:
    """Return the versions of the study in a folder, oldest first. Raises `DataError` if they cannot be read.

    A link that leaves the folder is not followed.
    """
    path = checked_path(folder, FILE)
    try:
        return _VERSIONS.validate_json(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise DataError("The registration of the study cannot be read.", value=f"{folder.name}/{FILE}",
                        fix="Restore it; without it, the next start registers the study again.") from error  # fmt: skip


def register(study: Study, folder: Path, finished_parts: int) -> list[Version]:
    """Store the study's file in the folder if it is new or has changed; return all versions."""
    versions = read_versions(folder)
    if not versions or versions[-1].sha256 != study.sha256:
        new = Version(time=time.time(), sha256=study.sha256, finished_parts=finished_parts, text=study.text)
        versions.append(new)
        write_atomically(folder / FILE, json.dumps([version.model_dump() for version in versions], indent=1))
    return versions


def register_unchanged(
    study: Study, folder: Path, stored: Mapping[str, str], finished: Collection[str]
) -> list[Version]:
    """Register a study if the parts that exist are those of its file; return all versions.

    Args:
        study: The study.
        folder: Its folder.
        stored: YAML of the existing parts, by name.
        finished: Names of the finished parts.

    Raises `ConfigError`, and stores nothing, if a part has changed.
    """
    parts = study.parts()
    for part in parts:
        if part.name in stored:
            check_unchanged(part, stored[part.name])
    return register(study, folder, sum(part.is_arm and part.name in finished for part in parts))


def changes(versions: Sequence[Version]) -> Iterator[str]:
    """Return a sentence for each later version: when, after how many finished parts, and what changed."""
    for old, new in pairwise(versions):
        before, after = load_yaml(old.text), load_yaml(new.text)
        a, b = ({h["name"]: h for h in data.get("hypotheses", ())} for data in (before, after))
        texts = [f"hypothesis {name!r} removed" for name in a if name not in b]
        texts += [f"hypothesis {name!r} added" for name in b if name not in a]
        for name in (name for name in a if name in b and a[name] != b[name]):
            fields = [key for key in {**a[name], **b[name]} if a[name].get(key) != b[name].get(key)]
            moved = ", ".join(f"{key} {a[name].get(key, 'default')} → {b[name].get(key, 'default')}" for key in fields)
            texts.append(f"hypothesis {name!r} changed ({moved})")
        others = [key for key in {**before, **after} if key != "hypotheses" and before.get(key) != after.get(key)]
        texts += [f"seeds {before.get(key)} → {after.get(key)}" for key in others if key == "seeds"]
        others = [key for key in others if key != "seeds"]
        texts += [f"{', '.join(others)} changed"] if others else []
        yield f"{when(new)}: {'; '.join(texts) or 'only comments or layout changed'}."


def when(version: Version) -> str:
    """Return the time of a version, UTC, and how many parts had finished."""
    finished = f"after {version.finished_parts} finished part{'' if version.finished_parts == 1 else 's'}"
    moment = finished if version.finished_parts else "before a part had finished"
    return f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(version.time))}, {moment}"
