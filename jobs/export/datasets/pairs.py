"""Preference pairs: a teacher's own hint without a leak, and a leaking one on the same task.

Hints are stored in a scratch SQLite file, so memory does not grow with their number. A leaking hint is paired with
such ones on the same *history* (attempts and hints), then on the same *attempt*, then on the same *task*. The
prompt contains the history or the attempt that they share, otherwise the attempt that the leak-free hint answers.
"""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from jobs.export.datasets.dataset_types import HINT_COLUMNS, attempt_text, bare_prompt, origin, reply, teacher_prompt
from jobs.export.datasets.export_records import ExportRecord
from jobs.export.datasets.formats import Decisions
from rl2f_core.types import JsonObject

Match = Literal["history", "attempt", "task"]
MATCHES: tuple[Match, ...] = ("history", "attempt", "task")
"""Closest first."""

_SCHEMA = """
CREATE TABLE clean (id INTEGER PRIMARY KEY, task TEXT, history BLOB, attempt BLOB, text TEXT, origin TEXT,
    prompts TEXT, UNIQUE (task, history, text));
CREATE TABLE leaking (id INTEGER PRIMARY KEY, task TEXT, history BLOB, attempt BLOB, text TEXT, origin TEXT,
    UNIQUE (task, history, text));
"""


class PairFinder:
    """Collect hints, then pair them.

    Args:
        path: Scratch file to create; the caller deletes it.
        seed: Chooses among equally close hints.
        per_leak: Maximum number of pairs per leaking hint.
        loosest: The minimum that the two hints must share.
        privileged: The prompts contain the answer.
    """

    def __init__(self, path: Path, seed: int, per_leak: int, loosest: Match, privileged: bool = False) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16000;")
        self._db.executescript(_SCHEMA)
        self._db.execute("BEGIN")
        self._seed, self._per_leak, self._privileged = seed, per_leak, privileged
        self._levels = MATCHES[: MATCHES.index(loosest) + 1]

    def add(self, record: ExportRecord, decisions: Decisions) -> None:
        """Add the decided hints of a dialogue. The same hint on the same history counts once."""
        for turn, decision in zip(record.turns, decisions, strict=True):
            if decision is None or decision.leaks is None or turn.hint is None:
                continue
            history = _digest(json.dumps(teacher_prompt(record, turn.index), ensure_ascii=False))
            about = {"turn": turn.index, "source": decision.source, "teacher": turn.hint.teacher,
                     "planted": turn.hint.planted or "", "determines_answer": turn.determines_answer}  # fmt: skip
            source = json.dumps({**origin(record), **about}, ensure_ascii=False)
            row = (record.task_key, history, _digest(attempt_text(turn)), turn.hint.feedback, source)
            if decision.leaks:
                self._db.execute("INSERT OR IGNORE INTO leaking VALUES (NULL, ?, ?, ?, ?, ?)", row)
            elif decision.has_content:
                history_prompt = teacher_prompt(record, turn.index, self._privileged)
                attempt_prompt = bare_prompt(record, turn, self._privileged)
                prompts = {"history": history_prompt, "attempt": attempt_prompt, "task": attempt_prompt}
                prompts_json = json.dumps(prompts, ensure_ascii=False)
                self._db.execute("INSERT OR IGNORE INTO clean VALUES (NULL, ?, ?, ?, ?, ?, ?)", (*row, prompts_json))

    def rows(self) -> Iterator[JsonObject]:
        """Yield `prompt, chosen, rejected` in the order of the leaking hints."""
        self._db.execute("COMMIT")
        self._db.execute("CREATE INDEX near ON clean (task, attempt)")
        for number, task, history, attempt, text, source in self._db.execute(
            "SELECT id, task, history, attempt, text, origin FROM leaking ORDER BY id"
        ):
            rejected = json.loads(source)
            for level, chosen_text, chosen_source, prompts in self._partners(number, task, history, attempt, text):
                chosen = json.loads(chosen_source)
                yield {
                    "prompt": json.loads(prompts)[level],
                    "chosen": reply(chosen_text),
                    "rejected": reply(text),
                    **{k: rejected[k] for k in ("task", "task_key", "split", "environment", "level")},
                    "match": level,
                    **{f"chosen_{k}": chosen[k] for k in HINT_COLUMNS},
                    **{f"rejected_{k}": rejected[k] for k in (*HINT_COLUMNS, "planted")},
                }

    def _partners(
        self, number: int, task: str, history: bytes, attempt: bytes, text: str
    ) -> Iterator[tuple[Match, str, str, str]]:
        """Yield level, text, source and prompts of up to `per_leak` hints with different texts, closest first."""
        rng = random.Random(f"{self._seed}/{number}")
        where = {
            "history": ("history = ?", (history,)),
            "attempt": ("attempt = ? AND history != ?", (attempt, history)),
            "task": ("attempt != ? AND history != ?", (attempt, history)),
        }
        used = {text}
        for level in self._levels:
            clause, values = where[level]
            query = f"FROM clean WHERE task = ? AND {clause} AND text != ?"
            (count,) = self._db.execute(f"SELECT count(*) {query}", (task, *values, text)).fetchone()
            for offset in rng.sample(range(count), min(count, 2 * self._per_leak)):
                chosen, source, prompts = self._db.execute(
                    f"SELECT text, origin, prompts {query} ORDER BY id LIMIT 1 OFFSET ?", (task, *values, text, offset)
                ).fetchone()
                if chosen not in used:
                    used.add(chosen)
                    yield level, chosen, source, prompts
                    if len(used) > self._per_leak:
                        return

    def close(self) -> None:
        """Close the scratch file."""
        self._db.close()


def scratch_is_full(error: BaseException) -> bool:
    """Whether the disk is too full for the scratch file."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_WRITE


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=12).digest()
