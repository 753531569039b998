"""The error vocabulary: what happened, the offending value, what is known, and the fix.

Every error raised on purpose by this project is an `RL2FError`.  Each also inherits the built-in type that a
Python reader would expect (`ValueError`, `KeyError`, `OSError`), so a caller may catch either.
"""

from __future__ import annotations

from collections.abc import Iterable


class RL2FError(Exception):
    """Base of all deliberate errors.

    Args:
        what: One sentence saying what happened.
        value: The offending value, shown with `repr` and shortened.
        known: The alternatives that would have been accepted.
        fix: What the reader should do now.
    """

    def __init__(
        self, what: str, *, value: object = None, known: Iterable[str] | None = None, fix: str | None = None
    ) -> None:
        self.what = what
        self.value = value
        self.known = tuple(known) if known is not None else None
        self.fix = fix
        super().__init__(what)

    def __reduce__(self):  # keyword arguments survive a trip through a worker process
        return _rebuild, (type(self), self.what, self.value, self.known, self.fix)

    def __str__(self) -> str:
        parts = [self.what]
        if self.value is not None:
            parts.append(f"Got: {shorten(repr(self.value))}.")
        if self.known is not None:
            parts.append(f"Known: {', '.join(self.known) or 'none'}.")
        if self.fix:
            parts.append(f"Fix: {self.fix}")
        return " ".join(parts)


def _rebuild(cls, what, value, known, fix):
    return cls(what, value=value, known=known, fix=fix)


def shorten(text: str, limit: int = 200) -> str:
    """Cut `text` to `limit` characters, saying how many were left out."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


class ConfigError(RL2FError, ValueError):
    """A configuration is wrong: an unknown key, a wrong type, or an impossible combination."""


class UnknownNameError(RL2FError, KeyError):
    """A name is not registered."""

    __str__ = RL2FError.__str__  # KeyError would show the repr of the first argument


class ModelError(RL2FError, OSError):
    """A model is missing, incomplete, of the wrong kind, or only available as pickle."""

    __str__ = RL2FError.__str__


class AdapterError(RL2FError, ValueError):
    """A LoRA adapter does not fit the base model."""


class DataError(RL2FError, ValueError):
    """A task, dialogue, event or checkpoint file cannot be read."""


class RunError(RL2FError, RuntimeError):
    """A run cannot start, go on, or be resumed."""


class PreflightError(RunError):
    """The preflight found that a run is not worth starting."""


class DiskFullError(RunError):
    """There is no room to write; nothing was left half-written."""
