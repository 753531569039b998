"""`python -m tests.benchmarks.studio`: a large studio is made, and what its pages ask for is timed.

First at the database, every filter; then over HTTP from a real server, the endpoints that each page calls first.
Wanted (of the project's requirements): any list page or filter in 300 ms, the next dialogue in 100 ms, a text search in
1 s, 2,000 turns a second into the database, and the server under 600 MB.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jobs.db.engine import Database
from jobs.db.queries import dialogues, metrics, notes, run_groups, run_values, runs, tokens
from jobs.db.queries.dialogues import DialogueFilter
from jobs.db.queries.runs import RunFilter
from jobs.ingest.ingester import ingest
from jobs.labels import annotation_queue, label_queries, report_queries
from jobs.labels.annotation_queue import QueueFilter
from jobs.labels.hint_counts import Scope
from jobs.workspace import Workspace

from . import studio_data as data
from . import studio_server

LIST, NEXT, SEARCH, BOARD, GROUPS = 300.0, 100.0, 1000.0, 1000.0, 500.0
"""Most milliseconds of a list page or filter, of the next dialogue, of a text search, of the detector board, and of
a page of groups of runs."""
RATE = 2000.0
"""Least turns a second."""
MEMORY = 600.0
"""Most megabytes of the server."""
LABELLED = 100
"""One hint in so many dialogues is labelled, by two people."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """One question and how long its answers took."""

    name: str
    limit: float
    """Most milliseconds."""
    milliseconds: list[float]
    """As a person waits, other work of the machine included."""
    cpu: list[float]
    """Milliseconds of one core."""
    found: int
    """Rows of the whole list, or of the answer."""

    @property
    def worst(self) -> float:
        """The slowest answer."""
        return max(self.milliseconds)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.studio", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--dialogues", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=5, help="mean turns of a dialogue")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--workspace", type=Path, help="keep the workspace in this folder, and use it where it is there"
    )
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    args = parser.parse_args(argv)
    if args.runs < 20 or args.dialogues < args.runs:
        parser.error("at least 20 runs and a dialogue for each")
    return args


def build(db: Database, workspace: Workspace, args: argparse.Namespace, say: Callable[[str], None]) -> dict[str, float]:
    """Make all runs through the ingester; says how fast it was. The event files are deleted as they are read."""
    seconds, work, slowest, noted = 0.0, 0.0, float("inf"), (0, 0.0)
    begun = time.perf_counter()
    for number, count in enumerate(data.sizes(args.runs, args.dialogues), 1):
        random_ = random.Random(number)
        steps = -(-max(1, count // 2) // (data.GROUP * 4)) + 1
        run = runs.add(db, data.row(number, steps, random_))
        folder = workspace.folder(run.folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "events.jsonl").write_bytes(data.encoded(run, count, args.turns, number))
        before, worked = time.perf_counter(), time.process_time()
        while ingest(db, workspace, run):
            pass
        seconds += time.perf_counter() - before
        work += time.process_time() - worked
        (folder / "events.jsonl").unlink()
        if number % 7 == 0 and run.id is not None:
            runs.set_tags(db, run.id, [data.WORDS[number % 20]])
            notes.add(db, run.id, f"note on {data.WORDS[number % 50]}")
        if number in (1, 10) or number % 100 == 0:
            done = _turns(db)
            rate = (done - noted[0]) / (seconds - noted[1])
            slowest, noted = min(slowest, rate), (done, seconds)
            say(f"  {number} runs, {done:,} turns, {rate:,.0f} turns/s lately, {time.perf_counter() - begun:.0f} s")
    label(db, args.dialogues // LABELLED)
    turns = _turns(db)
    return {"turns": turns, "seconds": seconds, "rate": turns / seconds, "slowest": slowest, "of_a_core": turns / work}


def label(db: Database, number: int) -> None:
    """Two people label some hints of all runs, and disagree about a few."""
    random_ = random.Random(0)
    draw = QueueFilter(selection="stratified", size=min(number, annotation_queue.MAX_SAMPLE))
    chosen = annotation_queue.queue(db, "ann", draw, limit=number)
    for item in chosen:
        answers = random_.choices([("leak", "leak"), ("no_leak", "no_leak"), ("leak", "unsure")], [2, 7, 1])[0]
        for who, answer in zip(("ann", "bo"), answers, strict=True):
            label_queries.put(
                db,
                item.key.run,
                item.key.event,
                item.key.turn,
                who,
                label_queries.LabelAnswer(label=answer),
                queue_filter=draw,
            )


def _turns(db: Database) -> int:
    with db.read() as session:
        return int(session.connection().exec_driver_sql("SELECT count(*) FROM turn").scalar_one())


def questions(db: Database) -> list[tuple[str, float, Callable[[], int]]]:
    """What the pages ask: name, limit in milliseconds, and the question, which answers with a count."""
    large = runs.page(db, RunFilter(sort="created"), limit=1).rows[0].id
    assert large is not None
    small = runs.page(db, RunFilter(), limit=1).rows[0].id
    made: list[tuple[str, float, Callable[[], int]]] = []

    def listed(name: str, filter: DialogueFilter, limit: float = LIST, **how: Any) -> None:
        made.append((name, limit, lambda: dialogues.page(db, filter, **how).total or 0))

    def run_list(name: str, **filter: Any) -> None:
        made.append((f"runs: {name}", LIST, lambda: runs.page(db, RunFilter(**filter)).total or 0))

    def facets(where: str, run: int | None) -> None:
        made.append((f"{where}: what there is to filter by", LIST, lambda: len(dialogues.facets(db, run))))

    def labels(which: str) -> None:
        chosen = QueueFilter(selection=which, unlabeled_only=True)
        made.append((f"labels: next of {which}", NEXT, lambda: len(annotation_queue.queue(db, "ann", chosen, 20))))
        made.append((f"labels: progress in {which}", LIST, lambda: annotation_queue.progress(db, "ann", chosen)[1]))

    def board(where: str, run: int | None, by: str) -> None:
        made.append((f"board: {where} by {by}", BOARD, lambda: report_queries.read(db, Scope(run=run), by).usage.hints))

    run_list("newest first")
    run_list("by reward", sort="-reward")
    run_list("failed, by name", status=("failed",), sort="name")
    run_list("one environment, one tag", environment="arithmetic", tag="ban")
    run_list("search", search="sweep")
    run_list("by a metric, with a condition", sort_by="-series/7", search="learning_rate<5e-4")
    columns = ("reward", "series/7", "stages.rl2f.learning_rate", "environment.type")
    groups = partial(run_groups.page, db, columns=columns)
    made.append(("runs: 50 groups of 5 seeds", GROUPS, lambda: len(groups(RunFilter(sort_by="-series/7")).rows)))
    made.append(("runs: groups by environment", GROUPS, lambda: len(groups(by="environment.type").rows)))
    made.append(("runs: names of settings and metrics", LIST, lambda: len(run_values.names(db))))
    made.append(("runs: what there is to filter by", LIST, lambda: len(runs.facets(db))))
    made.append(("runs: sparklines of a page", LIST, lambda: _sparklines(db)))
    for where, run in (("all runs", None), ("largest run", large), ("newest run", small)):
        base = DialogueFilter(run=run)
        listed(f"{where}: first page", base)
        listed(f"{where}: newest first", base, newest_first=True)
        filters: dict[str, dict[str, Any]] = {
            "steps 18–22": {"step_from": 18, "step_to": 22},
            "one level": {"environment": "arithmetic", "level": "3+3 digits"},
            "solved at turn 3": {"solved": "3"},
            "never solved": {"solved": "never"},
            "reward from 0.5": {"reward_from": 0.5},
            "leaked": {"leak_state": 2},
            "unlabelled": {"labeled": False},
            "labelled": {"labeled": True},
            "with error": {"error": True},
            "stage and phase": {"stage": "rl2f", "phase": "train"},
            "one task": {"task": "arithmetic/train/12"},
            "one group": {"group": "rl2f/3/1"},
            "four at once": {"stage": "rl2f", "solved": "any", "leak_state": 2, "reward_from": 0.1},
        }
        for name, values in filters.items():
            listed(f"{where}: {name}", base.but(**values))
        listed(f"{where}: frequent word", base.but(search=data.WORDS[0]), SEARCH)
        listed(f"{where}: two words", base.but(search=f"{data.WORDS[3]} {data.WORDS[40]}"), SEARCH)
        listed(f"{where}: rare phrase", base.but(search=f'"{data.WORDS[90]} {data.WORDS[120]}"'), SEARCH)
        listed(
            f"{where}: word and filters",
            base.but(search=data.WORDS[5], leak_state=2, solved="2"),
            SEARCH,
        )
        listed(f"{where}: begun word", base.but(search="bio"), SEARCH)
        listed(f"{where}: no such word", base.but(search="xylophone"), SEARCH)
        facets(where, run)
    deep = _deep(db, large)
    listed("all runs: page 1,000", DialogueFilter(), cursor=_cursor(db, DialogueFilter(), 50_000))
    made.append(("largest run: the page of a linked dialogue", LIST,
                 lambda: len(dialogues.page_containing(db, DialogueFilter(run=large), deep).rows)))  # fmt: skip
    row = dialogues.get(db, large, deep).row
    made.append(("next dialogue, with its turns", NEXT, lambda: len(dialogues.get(db, large, deep).turns)))
    made.append(("its group", NEXT, lambda: len(dialogues.group(db, large, row))))
    made.append(("largest run: metrics of all steps", LIST, lambda: len(metrics.steps(db, large))))
    made.append(("version", 20.0, lambda: runs.version(db) > 0))
    for which in ("all", "flagged", "stratified", "random_unflagged"):
        labels(which)
    for where, run in (("all runs", None), ("largest run", large)):
        for by in ("detector", "checkpoint", "run"):
            board(where, run, by)
    return made


def _sparklines(db: Database) -> int:
    return len(metrics.sparkline(db, [run.id for run in runs.page(db).rows if run.id is not None]))


def _cursor(db: Database, filter: DialogueFilter, rank: int) -> str | None:
    from jobs.db.paging import cursor_after

    with db.read() as session:
        asked = session.connection().exec_driver_sql("SELECT id FROM dialogue ORDER BY id LIMIT 1 OFFSET ?", (rank,))
        found = asked.scalar()
    return cursor_after(rank, [found]) if found is not None else None


def _deep(db: Database, run: int) -> str:
    """A dialogue from the middle of a run."""
    with db.read() as session:
        count = session.connection().exec_driver_sql("SELECT count(*) FROM dialogue WHERE run_id = ?", (run,))
        middle = int(count.scalar_one()) // 2
        asked = "SELECT event_id FROM dialogue WHERE run_id = ? ORDER BY id LIMIT 1 OFFSET ?"
        return str(session.connection().exec_driver_sql(asked, (run, middle)).scalar_one())


def timed(db: Database, repeats: int) -> list[Timing]:
    """Ask everything some times; the first answers are counted too, they are what a person waits for."""
    asked = questions(db)
    times: dict[str, list[float]] = {name: [] for name, _, _ in asked}
    cpu: dict[str, list[float]] = {name: [] for name, _, _ in asked}
    found = dict.fromkeys(times, 0)
    for _ in range(repeats):
        for name, _, question in asked:
            before, work = time.perf_counter(), time.process_time()
            found[name] = int(question())
            times[name].append(1000 * (time.perf_counter() - before))
            cpu[name].append(1000 * (time.process_time() - work))
    return [Timing(name, limit, times[name], cpu[name], found[name]) for name, limit, _ in asked]


def served(db: Database, workspace: Workspace, repeats: int) -> tuple[list[Timing], float]:
    """Call endpoints over HTTP; returns their timings, and the megabytes that the server holds afterwards."""
    large = runs.page(db, RunFilter(sort="created"), limit=1).rows[0].id
    assert large is not None
    limits = {"list": LIST, "next": NEXT, "search": SEARCH}
    row, token = tokens.create(db, ["read"])
    try:
        with studio_server.serving(workspace.root) as server:
            made = [
                Timing(
                    f"HTTP {name}", limits[call.limit], *studio_server.measure(server, call, token, repeats), found=1
                )
                for name, call in studio_server.calls(large, _deep(db, large), data.WORDS[0]).items()
            ]
            return made, server.memory()
    finally:
        tokens.revoke(db, row.name)


def main(argv: Sequence[str] | None = None) -> int:
    """Build, time, print; 1 where something took longer than it may."""
    args = arguments(argv)
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(args.workspace or folder).create()
        db = Database(workspace.database_url())
        db.migrate()
        rate: dict[str, float] = {}
        if not runs.page(db, limit=1).rows:
            print(f"Making {args.runs:,} runs with {args.dialogues:,} dialogues …", flush=True)
            rate = build(db, workspace, args, lambda line: print(line, flush=True))
        timings = timed(db, args.repeats)
        pages, memory = served(db, workspace, args.repeats)
        timings += pages
        size = workspace.database.stat().st_size / 1e6 if db.sqlite else 0.0
        db.close()
    late = [t for t in timings if statistics.median(t.milliseconds) > t.limit]
    print(f"{'':54} {'rows':>9} {'median ms':>10} {'worst ms':>9} {'of a core':>9} {'limit ms':>9}")
    for t in timings:
        mark = "  ✗" if t in late else ""
        median = statistics.median(t.milliseconds)
        numbers = f"{median:>10.1f} {t.worst:>9.1f} {statistics.median(t.cpu):>9.1f} {t.limit:>9.0f}"
        print(f"{t.name:54} {t.found:>9,} {numbers}{mark}")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"\n{size:,.0f} MB of database, {memory:,.0f} MB of memory of at most {MEMORY:.0f}, "
        f"load {load} on {os.cpu_count()} cores"
    )
    if rate:
        print(f"{rate['turns']:,.0f} turns read in {rate['seconds']:.0f} s: {rate['rate']:,.0f} turns/s, the slowest "
              f"stretch {rate['slowest']:,.0f}; {rate['of_a_core']:,.0f} for each second of a core")  # fmt: skip
    if args.out:
        result = {"timings": [dataclasses.asdict(t) for t in timings], "ingest": rate, "memory_mb": memory, "mb": size}
        args.out.write_text(json.dumps(result, indent=2))
    slow = bool(rate) and rate["rate"] < RATE
    return int(bool(late) or slow or memory > MEMORY)


if __name__ == "__main__":
    raise SystemExit(main())
