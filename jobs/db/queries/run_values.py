"""Settings and newest metrics of runs by name: columns, orders, conditions and groups of the runs table.

Settings are the leaves of the configuration (`stages.rl2f.learning_rate`), stored with the run. Metrics are those of
the newest training step. `hint_effect`, `solve_rate` and `evaluation/NAME` belong to the newest evaluated
checkpoint that has them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import (
    ColumnElement,
    Connection,
    String,
    and_,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
)

from jobs.db.columns import table_of
from jobs.db.engine import Database
from jobs.db.models import Metric, Run, RunValue, Tag
from jobs.db.paging import Key
from jobs.db.queries.outcomes import Outcomes, evaluation_outcomes, solved_by_task
from rl2f_core.common.file_io import checked_path
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.dialogue.metrics.dialogues import solve_rate_difference
from rl2f_core.errors import DataError
from rl2f_core.types import JsonObject

ALWAYS_KNOWN = ("reward", "hint_effect", "solve_rate")
"""Metrics that can be named before a run has them."""
NOT_IN_GROUP_KEY = ("seed", "name", "start_from")
"""Settings in which the runs of a group differ."""
SEED = re.compile(r"[\s._-]*seed[\s._-]*\d+$")
"""The seed in the name of a run, such as `-seed-0`."""
CHECKPOINT = re.compile(r"(?P<run>/.+)/checkpoints/(?P<name>[^/]+)")
"""Path of a checkpoint of a run."""
CONDITION = re.compile(r"([^<>=!]+)(<=|>=|!=|=|<|>)(.*)")
"""A word of a search that compares a value, e.g. `learning_rate<1e-3`."""
_COLUMNS = ("environment", "method", "model", "status", "kind")
_metric, _run, _value = table_of(Metric).c, table_of(Run).c, table_of(RunValue).c


def flatten(config: object, prefix: str = "") -> JsonObject:
    """Return all values by path, e.g. `rollout.temperature`; list items by `name` or position."""
    if isinstance(config, Mapping):
        items = [(str(key), value) for key, value in config.items()]
    elif isinstance(config, list) and any(isinstance(item, Mapping | list) for item in config):
        names = [item.get("name") if isinstance(item, Mapping) else None for item in config]
        usable = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
        items = [(str(names[i]) if usable else str(i), item) for i, item in enumerate(config)]
    else:
        return {prefix: config}
    result: JsonObject = {}
    for key, value in items:
        result |= flatten(value, f"{prefix}.{key}" if prefix else key)
    return result if result or not prefix else {prefix: config}


def index_config(connection: Connection, run_id: int, config: str) -> str:
    """Store the settings of a run's configuration; return the key that it shares with its other seeds.

    The key is empty for a configuration that cannot be read.
    """
    try:
        data = load_yaml(config)
    except yaml.YAMLError:
        return ""
    if not isinstance(data, dict):
        return ""
    put(connection, run_id, flatten(data), is_setting=True)
    return group_key(data)


def group_key(config: JsonObject) -> str:
    """Return a key of all settings except `NOT_IN_GROUP_KEY`.

    Instead of the path of a checkpoint of a run, or of a source run, it contains the settings of that run, or without
    its configuration the name of `config` without the seed.
    """
    name = SEED.sub("", str(config.get("name", "")))
    return _hash(_replace_runs(config, lambda folder: _run_settings(folder) or name))


def _run_settings(folder: str) -> object:
    """Return the settings of a run without paths of other runs; None if they cannot be read."""
    if not Path(folder).is_absolute():
        return None
    try:
        data = load_yaml(checked_path(Path(folder), "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError, DataError):
        return None
    return _replace_runs(data, lambda _: "") if isinstance(data, dict) else None


def _replace_runs(config: JsonObject, settings: Callable[[str], object]) -> JsonObject:
    """Return all settings except `NOT_IN_GROUP_KEY`, with `settings(folder)` for each folder of another run."""

    def replace(value: object) -> object:
        if isinstance(value, Mapping):
            return {key: replace(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [replace(item) for item in value]
        match = CHECKPOINT.fullmatch(value) if isinstance(value, str) else None
        return value if match is None else [match["name"], settings(match["run"])]

    same = {key: replace(value) for key, value in config.items() if key not in NOT_IN_GROUP_KEY}
    return {**same, "source": settings(str(config["source"]))} if "source" in config else same


def _hash(settings: object) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def put(connection: Connection, run_id: int, values: Mapping[str, object], *, is_setting: bool = False) -> None:
    """Replace values of a run by name; None is not stored."""
    rows = [
        {
            "run_id": run_id,
            "name": name,
            "number": float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None,
            "text": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str),
            "is_setting": is_setting,
        }
        for name, value in values.items()
        if value is not None
    ]
    if rows:
        names = [row["name"] for row in rows]
        connection.execute(delete(RunValue).where(_value.run_id == run_id, _value.name.in_(names)))
        connection.execute(insert(RunValue), rows)


def index_metrics(connection: Connection, run_id: int) -> None:
    """Store the metrics of a run's newest step and evaluations instead of older ones."""
    of_run = select(_metric.stage, _metric["values"]).where(_metric.run_id == run_id)
    newest = connection.execute(of_run.where(_metric.number >= 0).order_by(_metric.number.desc()).limit(1)).first()
    rows = connection.execute(of_run.where(_metric.number < 0).order_by(_metric.time, _metric.stage)).all()
    outcomes = evaluation_outcomes(connection, run_id) if rows else {}
    evaluated = evaluation_values([(stage.partition(":")[2], values) for stage, values in rows], outcomes)
    values = {"reward": evaluated.get("evaluation/reward")} if newest is None else newest[1]
    connection.execute(delete(RunValue).where(_value.run_id == run_id, ~_value.is_setting))
    put(connection, run_id, {**values, **evaluated})


def evaluation_values(
    evaluations: Sequence[tuple[str, Mapping[str, float]]], outcomes: Outcomes
) -> dict[str, float | None]:
    """Return the values of the newest checkpoint that was evaluated with hints; its hint effect is that of the report.

    Args:
        evaluations: `CHECKPOINT:CONDITION` and metrics, oldest first.
        outcomes: Outcomes of the dialogues.
    """
    conditions = dict(evaluations)
    checkpoint = next((name.removesuffix(":hints") for name in reversed(conditions) if name.endswith(":hints")), None)
    if checkpoint is None:
        return {}
    hints = conditions[f"{checkpoint}:hints"]
    values: dict[str, float | None] = {
        f"evaluation/{key}": value for key, value in hints.items() if "/" not in key or key.startswith("cum_acc/")
    }
    turns = max((int(key[8:]) for key in hints if key.startswith("cum_acc/")), default=0)
    values["solve_rate"] = hints.get(f"cum_acc/{turns}")
    sides = [outcomes.get((checkpoint, condition), {}) for condition in ("hints", "contentless")]
    values["hint_effect"] = solve_rate_difference(*(solved_by_task(side, turns) for side in sides)).value
    return values


def names(db: Database) -> dict[str, bool]:
    """Return the name of every setting and metric, sorted, and whether it is a setting."""
    with db.read() as session:
        query = select(_value.name, func.max(_value.is_setting)).group_by(_value.name).order_by(_value.name)
        return {name: bool(is_setting) for name, is_setting in session.execute(query)}


def is_known(db: Database, name: str) -> bool:
    """Return whether a run has a setting or metric of this name."""
    return bool(db.fetch_all(select(_value.name).where(_value.name == name).limit(1)))


def of_runs(db: Database, run_ids: Collection[int], chosen: Collection[str]) -> dict[int, dict[str, float | str]]:
    """Return the named values of runs, numbers as numbers; a missing value is omitted."""
    values: dict[int, dict[str, float | str]] = {run_id: {} for run_id in run_ids}
    if chosen:
        query = select(RunValue).where(_value.run_id.in_(values), _value.name.in_(chosen))
        for row in db.fetch_all(query):
            values[row.run_id][row.name] = row.text if row.number is None else row.number
    return values


def differing(db: Database, run_ids: Collection[int]) -> list[str]:
    """Return the names of settings that differ between runs, those of most runs first, without name and seed."""
    settings = (_value.run_id.in_(run_ids), _value.is_setting, _value.name.not_in(NOT_IN_GROUP_KEY))
    is_different = or_(func.min(_value.text) != func.max(_value.text), func.count() < len(set(run_ids)))
    query = select(_value.name).where(*settings).group_by(_value.name).having(is_different)
    return db.fetch_all(query.order_by(func.count().desc(), _value.name))


def value_of(name: str, column: str) -> ColumnElement[Any]:
    """Return the column `number` or `text` of a run's value, null if the run has none."""
    return select(_value[column]).where(_value.run_id == _run.id, _value.name == name).scalar_subquery()


def condition(word: str) -> ColumnElement[bool] | None:
    """Return the condition of a word such as `hint_effect>0.1` or `tag=good`; None if it compares nothing.

    A name is that of a value or, if no run has it, the end of a setting's path. Numbers are compared as numbers.
    """
    match = CONDITION.fullmatch(word)
    if match is None:
        return None
    name, sign, text = match[1], match[2], match[3]
    if name == "tag":
        holds = exists().where(table_of(Tag).c.run_id == _run.id, table_of(Tag).c.tag == text)
        return ~holds if sign == "!=" else holds
    if name in _COLUMNS:
        return _run[name] != text if sign == "!=" else _run[name] == text
    other = table_of(RunValue).alias()
    is_exact = select(other.c.name).where(other.c.name == name).exists()
    is_named = or_(_value.name == name, and_(~is_exact, _value.name.endswith(f".{name}", autoescape=True)))
    rows = and_(_value.run_id == _run.id, is_named)
    if text == "":
        return exists().where(rows) if sign == "!=" else ~exists().where(rows)
    compared: ColumnElement[bool] = func.lower(_value.text) == text.lower()
    try:
        number, column = float(text), _value.number
        signs = {"<": column < number, ">": column > number, "<=": column <= number, ">=": column >= number}
        compared = signs.get(sign, column == number)
    except ValueError:
        if sign in ("<", ">", "<=", ">="):
            return None
    holds = exists().where(rows, compared)
    return ~holds if sign == "!=" else holds


def value_keys(number: ColumnElement[Any], text: ColumnElement[Any] | None, down: bool) -> list[Key]:
    """Return sort keys of a value that may be missing: rows without it come last in either direction."""
    is_missing = number.is_(None) if text is None else and_(number.is_(None), text.is_(None))
    texts = [] if text is None else [Key(func.coalesce(func.lower(text, type_=String), "", type_=String), down)]
    return [Key(case((is_missing, 1), else_=0)), Key(func.coalesce(number, 0.0), down), *texts]


def key_column(by: str) -> ColumnElement[str]:
    """Return the key of a run's group.

    Args:
        by: `seed` for runs that differ only in seed and name, or a setting or metric: its name and value are the key.
    """
    if by == "seed":
        alone = literal("#") + cast(_run.id, String)
        return case((_run.group_key == "", alone), else_=_run.group_key)
    return literal(f"{by}=") + func.coalesce(value_of(by, "text"), "", type_=String)
