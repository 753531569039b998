"""Records of actions in the audit log: who called which endpoint, with which arguments, and what came of it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from pydantic import BaseModel

from jobs.db.engine import Database
from jobs.db.errors import StoreError
from jobs.db.models import AuditEntry
from jobs.db.queries import audit_log
from rl2f_core.errors import RL2FError

CALLER: ContextVar[str] = ContextVar("caller", default="browser")
"""Who calls endpoints in this context: `browser`, `command line`, or `token NAME`."""
NAME = re.compile(r"[\w@.:+-]{0,31}")
"""Texts that are recorded, such as names of checkpoints and presets. Tokens and keys of services are longer."""
WORD = re.compile(r"[^\s'\"`,;()[\]{}…]+")
KEY = re.compile(r"(?<!\S)#.*|(?<![\w.-])[\w.-]++['\"]?:(?=\s|$)", re.MULTILINE)
"""A comment or a key of YAML or JSON; found in linear time."""
IDENTITIES = ("event_id", "annotator", "author")
"""Arguments that say what was labeled and by whom; they are recorded up to `MAX_IDENTITY_CHARS` characters."""
MAX_IDENTITY_CHARS = 200
_log = logging.getLogger(__name__)


@dataclass
class Action:
    """An endpoint call that is being recorded."""

    result: object = None


@contextmanager
def recorded(db: Database, name: str, given: Mapping[str, object]) -> Iterator[Action]:
    """Record a call of an endpoint with these arguments when the block ends.

    The result's `run` or undone label becomes the detail. An entry that cannot be written is logged and does not undo
    the action.
    """
    caller, action = CALLER.get(), Action()
    entry = audit_log.entry(caller, name, summarize_call(given))
    try:
        yield action
        entry.detail = _describe_result(action.result)
    except Exception as error:
        entry.outcome, entry.detail = "failed", _reason(error, given, entry.arguments)[: audit_log.MAX_CHARS]
        raise
    finally:
        write_entry(db, entry)


def write_entry(db: Database, entry: AuditEntry) -> None:
    """Append an entry unless the database is read-only; a failure is logged."""
    if db.read_only:
        return
    try:
        audit_log.add(db, entry)
    except StoreError:
        _log.exception("The audit log misses an entry: %s %s", entry.caller, entry.action)


def known_arguments(
    given: Mapping[str, object], names: Collection[str], old_names: Mapping[str, str]
) -> dict[str, object]:
    """Return the known ones of the arguments that are given, by their present names."""
    named = {old_names.get(name, name): value for name, value in given.items() if value is not None}
    return {name: value for name, value in named.items() if name in names}


def summarize_call(given: Mapping[str, object]) -> str:
    """Return `name=value` pairs, without None and values that may contain secrets or private text."""
    return ", ".join(
        f"{name}={_quote(value) if name in IDENTITIES and _is_identity(value) else _summarize(value)}"
        for name, value in given.items()
        if value is not None
    )


def _summarize(value: object) -> str:
    """Return numbers and short names; otherwise the number of characters or items, or the keys."""
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, str):
        return value if NAME.fullmatch(value) else f"{len(value)} characters"
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        return f"{{{', '.join(_summarize(str(key)) for key in value)}}}"
    if isinstance(value, list | tuple) and all(isinstance(item, int) for item in value):
        return f"[{', '.join(map(str, value))}]"
    return f"{len(value)} items" if isinstance(value, list | tuple) else type(value).__name__


def _is_identity(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_IDENTITY_CHARS and value.isprintable()


def _quote(value: object) -> str:
    """Return a text, in quotation marks if it could be read as several arguments."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if re.search('[,="]', text) else text


def _describe_result(result: object) -> str:
    """Return the run of a result, or the label that was undone."""
    if isinstance(result, BaseModel):
        result = result.model_dump(include={"run", "removed"})
    if not isinstance(result, Mapping):
        return ""
    undone = result.get("removed")
    if isinstance(undone, Mapping):
        return ", ".join(f"{name}={_quote(undone[name])}" for name in ("run", "event_id", "turn", "label"))
    return f"run {result['run']}" if "run" in result else ""


def _private_words(value: object, is_setting: bool = False) -> set[str]:
    """Return the words of texts and of the values of settings; keys are not private, nor comments of YAML."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return {word for item in value for word in _private_words(item, is_setting=True)}
    text = value if isinstance(value, str) else ""
    text = text if is_setting else KEY.sub(" ", text)
    return {word for match in WORD.findall(text) if len(word := match.strip(".:")) > 3}


def _reason(error: Exception, given: Mapping[str, object], arguments: str) -> str:
    """Return the text of a deliberate error without words that may be secret; of other errors only the type."""
    if not isinstance(error, RL2FError):
        return type(error).__name__

    def shown(match: re.Match[str]) -> str:
        word = match[0]
        is_private = not NAME.fullmatch(word) or word.strip(".:") in private
        return f"{len(word)} characters" if is_private and word not in arguments else word

    private = {word for value in given.values() for word in _private_words(value)}
    return WORD.sub(shown, str(error))
