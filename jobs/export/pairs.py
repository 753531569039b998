"""Preference pairs: a leak-free hint against a leaking one of the same task.

Hints are gathered in a scratch SQLite file while dialogues stream by, so that memory does not grow with their number.
A leaking hint is paired with leak-free ones that answer the same *history* (the same attempts and hints), else the
same *attempt*, else only the same *task*; the prompt shows just what the two have in common.
"""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from jobs.export.export_records import ExportRecord, ExportTurn
from jobs.export.row_builders import Decisions, bare_prompt, origin, reply, teacher_prompt

Match = Literal["history", "attempt", "task"]
MATCHES: tuple[Match, ...] = ("history", "attempt", "task")
"""Closest first."""

_SCHEMA = """
CREATE TABLE clean (id INTEGER PRIMARY KEY, task TEXT, history BLOB, attempt BLOB, text TEXT, origin TEXT,
    UNIQUE (task, history, text));
CREATE TABLE leaking (id INTEGER PRIMARY KEY, task TEXT, history BLOB, attempt BLOB, text TEXT, origin TEXT,
    prompts TEXT, UNIQUE (task, history, text));
"""


class PairFinder:
    """Gathers hints, then pairs them.

    Args:
        path: A scratch file, made here; delete it afterwards.
        seed: Chooses among equally close partners.
        per_leak: Most pairs for one leaking hint.
        loosest: The least that the two hints must share.
        privileged: The prompts show the answer.
    """

    def __init__(self, path: Path, seed: int, per_leak: int, loosest: Match, privileged: bool = False) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16000;")
        self._db.executescript(_SCHEMA)
        self._db.execute("BEGIN")
        self._seed, self._per_leak, self._privileged = seed, per_leak, privileged
        self._levels = MATCHES[: MATCHES.index(loosest) + 1]

    def add(self, record: ExportRecord, decisions: Decisions) -> None:
        """Gather the decided hints of a dialogue. The same hint on the same history counts once."""
        for step, decision in zip(record.steps, decisions, strict=True):
            if decision is None or decision.leaks is None:
                continue
            where = {**origin(record), "turn": step.index, "source": decision.source}
            row = (
                record.task_key,
                self._history(record, step),
                _digest(step.attempt),
                step.written or "",
                json.dumps(where, ensure_ascii=False),
            )
            if not decision.leaks:
                self._db.execute(
                    "INSERT OR IGNORE INTO clean (task, history, attempt, text, origin) VALUES (?, ?, ?, ?, ?)", row
                )
                continue
            prompts = {
                "history": teacher_prompt(record, step.index, self._privileged),
                "attempt": bare_prompt(record, step, self._privileged),
                "task": bare_prompt(record, None, self._privileged),
            }
            self._db.execute(
                "INSERT OR IGNORE INTO leaking (task, history, attempt, text, origin, prompts)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (*row, json.dumps(prompts, ensure_ascii=False)),
            )

    def _history(self, record: ExportRecord, step: ExportTurn) -> bytes:
        return _digest(json.dumps(teacher_prompt(record, step.index), ensure_ascii=False))

    def rows(self) -> Iterator[dict[str, Any]]:
        """`prompt, chosen, rejected`, in the order in which the leaking hints came."""
        self._db.execute("COMMIT")
        self._db.execute("CREATE INDEX near ON clean (task, attempt)")
        last = 0
        while True:
            batch = self._db.execute(
                "SELECT id, task, history, attempt, text, origin, prompts FROM leaking"
                " WHERE id > ? ORDER BY id LIMIT 500",
                (last,),
            ).fetchall()
            if not batch:
                return
            for number, task, history, attempt, text, said, prompts in batch:
                last = number
                where, shown = json.loads(said), json.loads(prompts)
                for level, chosen, chosen_said in self._partners(number, task, history, attempt, text):
                    other = json.loads(chosen_said)
                    yield {
                        "prompt": shown[level],
                        "chosen": reply(chosen),
                        "rejected": reply(text),
                        **{k: where[k] for k in ("task", "task_key", "split", "environment", "level")},
                        "match": level,
                        **{f"chosen_{k}": other[k] for k in ("run", "dialogue", "turn", "source")},
                        **{f"rejected_{k}": where[k] for k in ("run", "dialogue", "turn", "source")},
                    }

    def _partners(
        self, number: int, task: str, history: bytes, attempt: bytes, text: str
    ) -> Iterator[tuple[Match, str, str]]:
        """Up to `per_leak` leak-free hints with other words, the closest first."""
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
            (held,) = self._db.execute(f"SELECT count(*) {query}", (task, *values, text)).fetchone()
            for offset in rng.sample(range(held), min(held, 2 * self._per_leak)):
                chosen, said = self._db.execute(
                    f"SELECT text, origin {query} ORDER BY id LIMIT 1 OFFSET ?", (task, *values, text, offset)
                ).fetchone()
                if chosen not in used:
                    used.add(chosen)
                    yield level, chosen, said
                    if len(used) > self._per_leak:
                        return

    def close(self) -> None:
        """Let go of the scratch file."""
        self._db.close()


def scratch_is_full(error: BaseException) -> bool:
    """Whether SQLite had no room for the scratch file."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_WRITE


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=12).digest()
