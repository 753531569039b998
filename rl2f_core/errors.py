"""Errors with the offending value, the known alternatives and the fix.

Every deliberate error of this project is an `RL2FError`, and also of the matching built-in type (`ValueError`, …).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from functools import partial

MAX_NEAREST = 3
"""Names that an error about an unknown one of many names lists."""


class RL2FError(Exception):
    """Base of all deliberate errors.

    Args:
        what: One sentence: what failed.
        value: The offending value, shown with `repr` and shortened.
        known: The accepted alternatives.
        fix: The key or command that fixes it.
    """

    def __init__(
        self, what: str, *, value: object = None, known: Iterable[str] | None = None, fix: str | None = None
    ) -> None:
        self.what = what
        self.value = value
        self.known = tuple(known) if known is not None else None
        self.fix = fix
        super().__init__(what)

    def __reduce__(self) -> tuple[partial[RL2FError], tuple[()]]:  # pickle keeps keyword arguments
        return partial(type(self), self.what, value=self.value, known=self.known, fix=self.fix), ()

    def __str__(self) -> str:
        parts = [self.what]
        if self.value is not None:
            parts.append(f"Got: {shorten_repr(self.value)}.")
        if self.known is not None:
            parts.append(f"Known: {', '.join(self.known) or 'none'}.")
        if self.fix:
            parts.append(f"Fix: {self.fix}")
        return " ".join(parts)


def shorten(text: str, limit: int = 200) -> str:
    """Truncate `text` to `limit` characters and append the number of omitted ones."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def rl2f_command(*words: object) -> str:
    """Return a command line of `rl2f` to copy into a shell, e.g. for the fix of an error."""
    return shlex.join(["rl2f", *map(str, words)])


def shorten_repr(value: object, limit: int = 200) -> str:
    """Return the shortened `repr` of a value; of a number with too many digits for Python, its size."""
    try:
        return shorten(repr(value), limit)
    except ValueError:
        return f"a number of {value.bit_length():,} bits" if isinstance(value, int) else f"a {type(value).__name__}"


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names most similar to a name, at most `MAX_NEAREST`; the first ones if none is similar."""
    names = list(known)
    return get_close_matches(name, names, n=MAX_NEAREST, cutoff=0.5) or names[:MAX_NEAREST]


class ConfigError(RL2FError, ValueError):
    """Invalid configuration: an unknown key, a wrong type, or a conflict."""


class FieldValueError(ValueError):
    """Invalid value of one field, raised by a validator of several fields.

    Args:
        message: What is wrong and how to fix it.
        loc: Keys and list positions of the field, relative to the validator's configuration; errors of
            `check_stage` and `check_run` give them relative to the run.
    """

    def __init__(self, message: str, *loc: str | int) -> None:
        super().__init__(message)
        self.loc = loc


_stored: ContextVar[bool] = ContextVar("stored", default=False)


@contextmanager
def stored_settings() -> Iterator[None]:
    """Within the block, configurations are those of recorded runs, which may have settings without effect."""
    token = _stored.set(True)
    try:
        yield
    finally:
        _stored.reset(token)


def refuse_ineffective(message: str, *loc: str | int) -> None:
    """Raise `FieldValueError` for a setting without the meant effect, unless a recorded run has it."""
    if not _stored.get():
        raise FieldValueError(message, *loc)


@contextmanager
def located_below(*loc: str | int) -> Iterator[None]:
    """Prefix the location of a `FieldValueError`."""
    try:
        yield
    except FieldValueError as error:
        raise FieldValueError(str(error), *loc, *error.loc) from error


class UnknownNameError(RL2FError, KeyError):
    """A name is not registered."""

    __str__ = RL2FError.__str__  # KeyError shows the repr of the first argument


class ModelError(RL2FError, OSError):
    """A model is missing, incomplete, of the wrong kind, or pickle only."""

    __str__ = RL2FError.__str__


class AdapterError(RL2FError, ValueError):
    """A LoRA adapter does not fit the base model."""


class DataError(RL2FError, ValueError):
    """A task, dialogue, event or checkpoint file cannot be read."""


class RunError(RL2FError, RuntimeError):
    """A run cannot start, continue or resume."""


class PreflightError(RunError):
    """The preflight failed."""


class DiskFullError(RunError):
    """The disk is full; no partial file remains."""
