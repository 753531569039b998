"""Named values of the workspace, e.g. `queue.paused` or `slots.cpu`."""

from __future__ import annotations

import re

from jobs.db.engine import Database
from jobs.db.models import Setting
from rl2f_core.errors import ConfigError

DEFAULTS = {
    "slots.cpu": "1",
    "slots.cuda": "auto",
    "slots.light": "2",
    "schedules.run_missed": "1",
    "retention.trash_days": "30",
    "retention.backup_days": "14",
    "retention.log_days": "90",
    "retention.audit_days": "365",
}
"""Settings that users change, with their defaults: see `jobs.queue.slots`, `jobs.scheduler.retention` and README.md."""
_VALUES = {
    "slots.cuda": (r"auto|(\d+(,\d+)*)?", "`auto`, or device numbers such as 0,1"),
    "slots": (r"\d{1,4}", "a whole number"),
    "schedules": ("0|1", "0 or 1"),
    "retention.audit_days": (r"[3-9]\d|[1-9]\d{2,5}", "a whole number of days, at least 30"),
    "retention": (r"[1-9]\d{0,5}", "a whole number of days, at least 1"),
}
"""Setting, or the part before the point → pattern of its values, and their description."""


def get(db: Database, name: str, default: str | None = None) -> str:
    """Return a value, or the default if it is not set: by default that of `DEFAULTS`, else an empty text."""
    with db.read() as session:
        setting = session.get(Setting, name)
    if setting is not None:
        return setting.value
    return DEFAULTS.get(name, "") if default is None else default


def put(db: Database, name: str, value: str) -> None:
    """Set a value."""
    with db.write() as session:
        session.merge(Setting(name=name, value=value))


def change(db: Database, name: str, value: str) -> dict[str, str]:
    """Set one of `DEFAULTS` and return all of them.

    Raises `ConfigError` if the name is unknown, or the value is neither a whole number nor CUDA devices.
    """
    if name not in DEFAULTS:
        raise ConfigError("Unknown setting.", value=name, known=[*DEFAULTS])
    group = name.partition(".")[0]
    pattern, kind = _VALUES.get(name) or _VALUES[group]
    if not re.fullmatch(pattern, value, re.ASCII):
        raise ConfigError(f"The setting {name} is {kind}.", value=value, fix=f"The default is {DEFAULTS[name]}.")
    put(db, name, value)
    return current(db)


def current(db: Database) -> dict[str, str]:
    """Return the values of `DEFAULTS`."""
    return {name: get(db, name) for name in DEFAULTS}
