"""Dialogues: filters, pages, full text, one dialogue turn by turn, its group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from event_data import append, dialogue, read_all, small_run, stored_run, turn
from pydantic import ValidationError
from sqlmodel import select

from jobs.db.dialogue_models import DialogueRow
from jobs.db.engine import Database
from jobs.db.errors import UnknownDialogueError, UnknownRunError
from jobs.db.models import LeakLabel
from jobs.db.queries import dialogues, notes, runs
from jobs.db.queries.dialogues import DialogueFilter
from jobs.workspace import Workspace
from rl2f_core.errors import DataError
from rl2f_core.run.events import Event
from rl2f_core.types import Hint, LeakReport, StopReason, Task, Turn, Verdict

LEAKED = Hint(text="Es ist acht.", teacher="llm", leak=LeakReport(leaked=True, detector="exact", span=(7, 11)))
UNCHECKED = Hint(text="Higher, Ångström!", teacher="llm")


def various() -> list[Event]:
    """Dialogues that differ in everything a filter asks for."""
    wrong = turn(0, hint=None)
    other = Task(
        id="arithmetic/test/5", environment="arithmetic", split="test", level="2+2 digits",
        public={"question": "What is 12 + 7?", "parts": ["zwölf", 7]}, privileged={"answer": "verraten"},
    )  # fmt: skip
    said = [
        dialogue(1, 0, 0, [turn(0, right=True, attempt="the quick brown fox", hint=None)]),
        dialogue(1, 0, 1, [turn(0, attempt="the slow fox", hint=LEAKED), turn(1, right=True)]),
        dialogue(1, 0, 2, [turn(0, hint=UNCHECKED), wrong.model_copy(update={"index": 1})]),
        dialogue(2, 1, 0, [turn(0, hint=UNCHECKED), turn(1, hint=LEAKED), turn(2, right=True)]),
        dialogue(3, 1, 0, [], error="out of memory", stop_reason=StopReason.FAILED),
    ]
    evaluated = [
        dialogue(
            0, 0, i, [turn(0, verdict=Verdict(correct=False, score=0.0), hint=None)], stage="evaluation", task=other,
            phase="evaluation", checkpoint=checkpoint, condition=control, key=f"arithmetic/test/5/{i}",
            id=f"dialogue:evaluation:{checkpoint}:{control}:arithmetic/test/5/{i}",
        )
        for checkpoint in ("base", "rl2f@3") for control in ("hints", "contentless") for i in (0, 1)
    ]  # fmt: skip
    return [*said, *evaluated]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database with two runs: `various`, and a small one. Tests only read it."""
    workspace = Workspace(tmp_path_factory.mktemp("workspace")).create()
    db = Database(workspace.database_url())
    db.migrate()
    run = stored_run(db, workspace, various(), "1-various")
    stored_run(db, workspace, small_run(), "2-small")
    with db.write() as session:
        session.add(LeakLabel(run_id=run.id or 0, event_id="dialogue:train:rl2f/1/0/1", turn=0, annotator="ada",
                              label="leak", time=1.0))  # fmt: skip
        session.connection().exec_driver_sql(
            "UPDATE dialogue SET label_count = 1 WHERE event_id LIKE '%rl2f/1/0/1' AND run_id = 1"
        )
    yield db
    db.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Database, Workspace]]:
    """A database that a test may write."""
    workspace = Workspace(tmp_path / "workspace").create()
    db = Database(workspace.database_url())
    db.migrate()
    yield db, workspace
    db.close()


def keys(db: Database, **filter: Any) -> list[str]:
    page = dialogues.page(db, DialogueFilter(**{"run": 1, **filter}), limit=500)
    assert page.total == len(page.rows)
    return [row.dialogue_id for row in page.rows]


TRAINED = ["rl2f/1/0/0", "rl2f/1/0/1", "rl2f/1/0/2", "rl2f/2/1/0", "rl2f/3/1/0"]
EVALUATED = ["arithmetic/test/5/0", "arithmetic/test/5/1"]


@pytest.mark.parametrize(
    ("filter", "wanted"),
    [
        ({"phase": "train"}, TRAINED),
        ({"stage": "rl2f", "step_from": 2}, TRAINED[3:]),
        ({"step_from": 1, "step_to": 2}, TRAINED[:4]),
        ({"step_to": 1, "phase": "train"}, TRAINED[:3]),
        ({"environment": "guess_number"}, TRAINED),
        ({"level": "2+2 digits", "checkpoint": "base", "condition": "hints"}, EVALUATED),
        ({"solved": "1"}, ["rl2f/1/0/0"]),
        ({"solved": "3"}, ["rl2f/2/1/0"]),
        ({"solved": "any"}, ["rl2f/1/0/0", "rl2f/1/0/1", "rl2f/2/1/0"]),
        ({"solved": "never", "phase": "train"}, ["rl2f/1/0/2", "rl2f/3/1/0"]),
        ({"reward_from": 0.85}, ["rl2f/1/0/0"]),
        ({"reward_from": 0.65, "reward_to": 0.85}, ["rl2f/1/0/1", "rl2f/2/1/0"]),
        ({"leak_state": 2}, ["rl2f/1/0/1", "rl2f/2/1/0"]),
        ({"leak_state": 1}, []),
        ({"leak_state": 0, "phase": "train"}, ["rl2f/1/0/0", "rl2f/1/0/2", "rl2f/3/1/0"]),
        ({"labeled": True}, ["rl2f/1/0/1"]),
        ({"labeled": False, "phase": "train"}, ["rl2f/1/0/0", "rl2f/1/0/2", "rl2f/2/1/0", "rl2f/3/1/0"]),
        ({"error": True}, ["rl2f/3/1/0"]),
        ({"group": "rl2f/1/0"}, TRAINED[:3]),
        ({"task": "guess_number/train/2-1"}, ["rl2f/2/1/0"]),
        ({"search": "quick fox"}, ["rl2f/1/0/0"]),
        ({"search": "fox"}, ["rl2f/1/0/0", "rl2f/1/0/1"]),
        ({"search": "FOX", "leak_state": 2}, ["rl2f/1/0/1"]),
        ({"search": '"brown fox"'}, ["rl2f/1/0/0"]),
        ({"search": '"fox brown"'}, []),
        ({"search": "quic"}, ["rl2f/1/0/0"]),
        ({"search": "quic "}, []),
        ({"search": "acht"}, ["rl2f/1/0/1", "rl2f/2/1/0"]),
        ({"search": "angstrom"}, ["rl2f/1/0/2", "rl2f/2/1/0"]),
        ({"search": "green box", "task": "guess_number/train/2-1"}, ["rl2f/2/1/0"]),
        ({"search": "verraten"}, []),
        ({"search": "xylophone"}, []),
        ({"search": "   "}, [*TRAINED, *EVALUATED * 4]),
    ],
    ids=str,
)  # fmt: skip
def test_each_filter_selects_matching_dialogues(filter: dict[str, Any], wanted: list[str], filled: Database) -> None:
    assert keys(filled, **filter) == wanted


def test_words_of_the_problem_are_found_and_those_of_the_privileged_half_are_not(filled: Database) -> None:
    assert len(keys(filled, search="zwölf")) == 8
    assert keys(filled, search="verraten") == []


def test_without_a_run_all_runs_are_searched(filled: Database) -> None:
    assert dialogues.page(filled, DialogueFilter()).total == 13 + 12
    assert dialogues.page(filled, DialogueFilter(search="box")).total == 5 + 12
    assert dialogues.page(filled, DialogueFilter(run=99)).rows == []


NASTY = [
    '"', '""', '"""', "'", "*", "a*", "*a", "-", "^", "a AND", "OR", "NOT fox", "NEAR(a b, 3)", "(", ")", "a:b",
    "attempts:fox", "{attempts hints}: fox", "fox + box", "\0", "fo\0x", "\ud800", "%", "_", "\\", ";--", "a" * 100_000,
    "x " * 5000, '"unclosed', "¿?", "😀", "dialogue_text", "fox'); DROP TABLE dialogue; --", "\n\t",
    "\N{RIGHT-TO-LEFT OVERRIDE}",
]  # fmt: skip


@pytest.mark.parametrize("search", NASTY, ids=lambda text: ascii(text)[:20])
def test_no_search_is_a_syntax_error(search: str, filled: Database) -> None:
    page = dialogues.page(filled, DialogueFilter.model_construct(search=search))
    assert page.total is not None and len(page.rows) <= page.total


def test_query_words_are_searched_for_as_words(filled: Database) -> None:
    assert keys(filled, search="NOT fox") == []
    assert keys(filled, search="the OR nothing") == []
    assert keys(filled, search="attempts:fox") == []


def walk(db: Database, filter: DialogueFilter, limit: int, **how: Any) -> list[list[int]]:
    pages, cursor = [], None
    while True:
        page = dialogues.page(db, filter, cursor, limit, **how)
        pages.append([row.id or 0 for row in page.rows])
        assert page.first == 1 + sum(map(len, pages[:-1]))
        assert (page.before is None) == (len(pages) == 1)
        if page.after is None:
            return pages
        cursor = page.after


@pytest.mark.parametrize("limit", [1, 4, 5, 12, 13, 50])
@pytest.mark.parametrize("filter", [DialogueFilter(run=1), DialogueFilter(), DialogueFilter(search="box")])
def test_pages_forward_and_back_hold_each_dialogue_once(limit: int, filter: DialogueFilter, filled: Database) -> None:
    pages = walk(filled, filter, limit)
    flat = [row for page in pages for row in page]
    assert flat == sorted(set(flat)) and len(flat) == dialogues.page(filled, filter).total
    assert walk(filled, filter, limit, newest_first=True)[0] == flat[::-1][:limit]
    cursor = dialogues.page(filled, filter, None, limit).after
    back: list[list[int]] = []
    last = None
    while cursor is not None:
        last = dialogues.page(filled, filter, cursor, limit)
        cursor = last.after
    cursor = last.before if last else None
    while cursor is not None:
        page = dialogues.page(filled, filter, cursor, limit)
        back.insert(0, [row.id or 0 for row in page.rows])
        cursor = page.before
    assert back == pages[:-1]


def test_dialogues_are_ordered_by_reward_then_by_id(own: tuple[Database, Workspace]) -> None:
    db, workspace = own
    stored_run(db, workspace, [dialogue(1, index=i) for i in range(6)])
    rewards = [0.5, 1.0, -1.0, 0.5, 1.0, 0.0]
    with db.write() as session:
        for row in session.scalars(select(DialogueRow)):
            row.reward = rewards[row.index]
    order = {"reward": [2, 5, 0, 3, 1, 4], "-reward": [1, 4, 0, 3, 5, 2]}
    for name, wanted in order.items():
        pages = walk(db, DialogueFilter(order=name), 4)
        assert [row - 1 for page in pages for row in page] == wanted


def test_dialogues_are_ordered_by_the_columns_of_the_table_and_none_is_lost(own: tuple[Database, Workspace]) -> None:
    db, workspace = own
    used = turn(1, right=True).model_copy(update={"bits_used": 1.5})
    unused = turn(1).model_copy(update={"bits_used": 0.0})
    hinted = turn(0).model_copy(update={"hint_bits": 1.5})
    stored_run(
        db, workspace,
        [dialogue(1, index=0, turns=[turn(0)]), dialogue(1, index=1, turns=[hinted, used], seed=-(2**62)),
         dialogue(1, index=2, turns=[hinted, unused, turn(2)])],
    )  # fmt: skip
    expected = {"bits": [0, 2, 1], "-bits": [1, 2, 0], "solved": [1, 0, 2], "-turns": [2, 1, 0], "seed": [1, 0, 2]}
    for name, wanted in expected.items():
        pages = walk(db, DialogueFilter(order=name), 2)
        assert [row - 1 for page in pages for row in page] == wanted, name
    (row,) = dialogues.page(db, DialogueFilter(used_hints=True)).rows
    assert (row.index, row.bits_used, row.tokens) == (1, 1.5, 2 * len(used.token_ids)) and row.task


def test_a_hint_is_used_if_the_next_attempt_differs_and_respects_all_of_it(own: tuple[Database, Workspace]) -> None:
    """A repeated attempt keeps what a hint confirms; one that respects half of the hint may do so by chance."""
    db, workspace = own
    first = turn(0).model_copy(update={"attempt": "A B B A", "hint_bits": 2.0})

    def next_attempt(text: str, bits: float) -> Turn:
        return turn(1).model_copy(update={"attempt": text, "bits_used": bits})

    nexts = [next_attempt("A B B A", 2.0), next_attempt("A C B B", 1.0), next_attempt("A C C A", 2.0)]
    stored_run(db, workspace, [dialogue(1, index=i, turns=[first, after]) for i, after in enumerate(nexts)])
    assert [row.index for row in dialogues.page(db, DialogueFilter(used_hints=True)).rows] == [2]


def test_new_dialogues_do_not_shift_the_pages_of_a_reader(own: tuple[Database, Workspace]) -> None:
    db, workspace = own
    run = stored_run(db, workspace, [dialogue(1, index=i) for i in range(10)])
    filter = DialogueFilter(run=run.id)
    first = dialogues.page(db, filter, limit=4)
    newest = dialogues.page(db, filter, limit=4, newest_first=True)
    append(workspace.folder(run.folder) / "events.jsonl", *(dialogue(2, index=i) for i in range(10)))
    read_all(db, workspace, run)
    assert [r.dialogue_id for r in dialogues.page(db, filter, first.after, 4).rows] == [
        f"rl2f/1/0/{i}" for i in range(4, 8)
    ]
    older = dialogues.page(db, filter, newest.after, 4, newest_first=True)
    assert [r.dialogue_id for r in older.rows] == [f"rl2f/1/0/{i}" for i in (5, 4, 3, 2)]


@pytest.mark.parametrize(
    "cursor", ["x", "", "W10", "WzEsMSwiYSJd", "ÄÖ", "WzEsIDEsIDFlOTk5XQ", "AAAA", "null", "😀" * 9]
)
def test_a_place_that_is_none_is_a_plain_error(cursor: str, filled: Database) -> None:
    if cursor == "":
        assert dialogues.page(filled, DialogueFilter(), cursor).before is None
        return
    with pytest.raises(DataError, match="cursor of the list is invalid"):
        dialogues.page(filled, DialogueFilter(), cursor)


@pytest.mark.parametrize("event", ["dialogue:train:rl2f/1/0/0", "dialogue:train:rl2f/2/1/0",
                                   "dialogue:evaluation:rl2f@3:contentless:arithmetic/test/5/1"])  # fmt: skip
@pytest.mark.parametrize("limit", [1, 3, 50])
def test_a_dialogue_is_found_on_its_page(event: str, limit: int, filled: Database) -> None:
    filter = DialogueFilter(run=1)
    page = dialogues.page_containing(filled, filter, event, limit)
    assert event in [row.event_id for row in page.rows] and len(page.rows) <= limit
    assert (page.first - 1) % limit == 0
    pages = walk(filled, filter, limit)
    assert [row.id for row in page.rows] in pages


def test_a_dialogue_outside_the_filter_is_a_plain_error(filled: Database) -> None:
    searched = DialogueFilter(run=1, search="fox")
    assert dialogues.page_containing(filled, searched, "dialogue:train:rl2f/1/0/1").first == 1
    with pytest.raises(UnknownDialogueError):
        dialogues.page_containing(filled, searched, "dialogue:train:rl2f/2/1/0")
    with pytest.raises(UnknownDialogueError):
        dialogues.page_containing(filled, searched.but(run=2), "nothing")


def test_unknown_runs_and_dialogues_are_plain_errors(filled: Database) -> None:
    with pytest.raises(UnknownRunError, match=r"There is no run 99\..*list of runs"):
        dialogues.get(filled, 99, "dialogue:train:rl2f/1/0/0")
    with pytest.raises(UnknownDialogueError, match=r"Run 1 has no such dialogue.*'<b>'"):
        dialogues.get(filled, 1, "<b>")
    with pytest.raises(UnknownRunError):
        dialogues.facets(filled, 99)
    for values in ({"run": 2**70}, {"step_from": 2**63}, {"level": "\ud800"}):
        with pytest.raises(DataError, match="cannot be stored"):
            dialogues.page(filled, DialogueFilter.model_construct(**values))
    for values in ({"solved": "1; DROP TABLE turn"}, {"order": "length"}, {"run": 2**70}):
        with pytest.raises(ValidationError):
            DialogueFilter(**values)


def test_a_group_is_the_siblings_of_the_same_step_and_control(filled: Database) -> None:
    one = dialogues.get(filled, 1, "dialogue:train:rl2f/1/0/1").row
    assert [view.row.index for view in dialogues.group(filled, 1, one)] == [0, 1, 2]
    evaluated = dialogues.get(filled, 1, "dialogue:evaluation:base:hints:arithmetic/test/5/1").row
    siblings = dialogues.group(filled, 1, evaluated)
    assert [view.row.event_id for view in siblings] == [
        f"dialogue:evaluation:base:hints:arithmetic/test/5/{i}" for i in (0, 1)
    ]


def test_a_dialogue_without_turns_can_be_shown(filled: Database) -> None:
    view = dialogues.get(filled, 1, "dialogue:train:rl2f/3/1/0")
    assert (view.turns, view.row.error, view.row.outcomes, view.row.length) == ((), "out of memory", "", 0)


def test_what_there_is_to_filter_by(filled: Database) -> None:
    found = dialogues.facets(filled, 1)
    assert found == {
        "phases": ["evaluation", "train"], "stages": ["evaluation", "rl2f"],
        "levels": ["1 to 16", "2+2 digits"], "environments": ["arithmetic", "guess_number"],
        "checkpoints": ["base", "rl2f@3"], "conditions": ["contentless", "hints"], "steps": (0, 3), "longest": 3,
        "measured": False,
    }  # fmt: skip
    assert dialogues.facets(filled, 2)["checkpoints"] == []
    assert dialogues.facets(filled, None)["steps"] == (0, 3)


def test_deleting_a_run_leaves_nothing_of_it_and_all_of_the_others(own: tuple[Database, Workspace]) -> None:
    db, workspace = own
    kept = stored_run(db, workspace, various(), "1-kept")
    gone = stored_run(db, workspace, various(), "2-gone")
    for run in (kept, gone):
        notes.add(db, run.id or 0, "mine")
        runs.set_tags(db, run.id or 0, ["t"])
    with db.read() as session:
        ask = session.connection().exec_driver_sql
        names = [
            row[0] for row in ask("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'")
        ]
        before = {name: ask(f'SELECT count(*) FROM "{name}"').scalar_one() for name in names}
    runs.remove(db, gone.id or 0)
    with db.read() as session:
        ask = session.connection().exec_driver_sql
        after = {name: ask(f'SELECT count(*) FROM "{name}"').scalar_one() for name in names}
    filled_tables = {"run", "tag", "stage", "task", "dialogue", "record", "turn", "note"}
    assert all(before[name] > 0 for name in filled_tables)
    assert {name: 2 * after[name] for name in filled_tables} == {name: before[name] for name in filled_tables}
    assert dialogues.page(db, DialogueFilter(search="fox")).total == 2
    assert len(notes.of_run(db, kept.id or 0)) == 1


def test_turns_can_be_read_with_sql_as_the_guide_shows(filled: Database) -> None:
    guide = (Path(__file__).resolve().parents[3] / "jobs" / "README.md").read_text("utf-8")
    query = guide.partition("```sql\n")[2].partition("```")[0]
    texts = "SELECT reward, leaked, attempt, hint, feedback, parsed FROM turns WHERE run_id = 1 AND event_id = ?"
    view = dialogues.get(filled, 1, "dialogue:train:rl2f/1/0/1")
    with filled.read() as session:
        ask = session.connection().exec_driver_sql
        means = {row[0]: row[1:] for row in ask(query)}
        rows = [tuple(row) for row in ask(texts, (view.row.event_id,))]
    step = DialogueFilter(run=1, stage="rl2f", step_to=1)
    first = [turn for view in dialogues.next_views(filled, step, after=0, limit=99) for turn in view.turns]
    assert means[1][0] == pytest.approx(sum(turn.reward for turn in first) / len(first))
    assert rows == [
        (turn.known_reward, turn.hint is not None and turn.hint.read_leak, turn.attempt, turn.hint and turn.hint.text,
         turn.hint and turn.hint.feedback, turn.verdict.parsed)
        for turn in view.turns
    ]  # fmt: skip
