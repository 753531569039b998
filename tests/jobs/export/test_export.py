"""Rows, labels, pairs, files, card and manifest of an export, from run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from export_builders import ENVIRONMENT, answer, event, rows_of, turn, write_run, wrong
from replay_data import taxi_events

from jobs.db.models import LeakLabel
from jobs.export.datasets.dataset_types import FORMATS, messages, stepwise, teacher_prompt, unpaired
from jobs.export.datasets.export_records import ExportRecord, TaskRenderer, from_event, written
from jobs.export.datasets.exporter import export
from jobs.export.datasets.label_choice import decide
from jobs.export.datasets.pairs import PairFinder
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import FolderSource
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import Hint, LeakReport, StopReason, Turn, Verdict

TASK = ENVIRONMENT.task("train", 0)
VOICE = TaskRenderer(ENVIRONMENT)
PROBLEM = ENVIRONMENT.prompt(TASK.public)


def record(dialogue: DialogueEvent) -> ExportRecord:
    return from_event(dialogue, "7", "a run", VOICE)


def decisions(made: ExportRecord, source: Any = "detector") -> list[Any]:
    return [None if written(turn) is None else decide(turn, (), source) for turn in made.turns]


def labeled(*labels: tuple[str, str], leaked: bool | None = None) -> tuple[Turn, list[LeakLabel]]:
    """A turn with the detectors' finding, and people's labels."""
    hint = Hint(text="h", teacher="scripted", leak=None if leaked is None else LeakReport(leaked=leaked))
    key: Any = {"run_id": 1, "event_id": "d", "turn": 0, "time": 0.0}
    return (
        Turn(index=0, attempt="a", verdict=Verdict(correct=False, score=0.0), hint=hint),
        [LeakLabel(annotator=who, label=what, **key) for who, what in labels],
    )


# -- labels ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("turn_", "source", "annotator", "leaks", "why"),
    [
        (labeled(("ann", "leak")), "human", "", True, "human"),
        (labeled(("ann", "leak"), leaked=False), "both", "", True, "human"),
        (labeled(("ann", "leak"), leaked=False), "detector", "", False, "detector"),
        (labeled(("ann", "leak"), ("bob", "no_leak"), ("eve", "no_leak")), "human", "", False, "human"),
        (labeled(("ann", "leak"), ("bob", "no_leak"), leaked=True), "both", "", None, "disputed"),
        (labeled(("ann", "leak"), ("bob", "unsure")), "human", "", True, "human"),
        (labeled(("ann", "unsure"), leaked=True), "both", "", True, "detector"),
        (labeled(("ann", "unsure"), leaked=True), "human", "", None, "unsure"),
        (labeled(("ann", "leak"), ("bob", "no_leak")), "human", "bob", False, "human"),
        (labeled(("ann", "leak"), leaked=False), "both", "bob", False, "detector"),
        (labeled(leaked=True), "human", "", None, "unlabeled"),
        (labeled(), "both", "", None, "unlabeled"),
    ],
)
def test_whose_label_counts(turn_: Any, source: Any, annotator: str, leaks: bool | None, why: str) -> None:
    decision = decide(*turn_, source, annotator)
    assert (decision.leaks, decision.source) == (leaks, why)


# -- rows ------------------------------------------------------------------------------------------------------------
def three_turns(**more: Any) -> DialogueEvent:
    """Clean hint, leaking hint, right answer."""
    turns = [
        turn(TASK, 0, wrong(TASK, 0), "Look at the first letter."),
        turn(TASK, 1, wrong(TASK, 1), "It leaks.", True),
        turn(TASK, 2, f"<answer>{answer(TASK)}</answer>", None),
    ]
    return event(TASK, turns, name="d", **more)


def test_an_unpaired_row_is_the_teachers_view_and_true_means_no_leak() -> None:
    made = record(three_turns())
    first, second = unpaired(made, decisions(made))
    assert [m["role"] for m in first["prompt"]] == ["system", "user"]
    assert first["prompt"][1]["content"] == f"Problem:\n{PROBLEM}\n\nAttempt:\n{wrong(TASK, 0)}"
    assert first["completion"] == [{"role": "assistant", "content": "Look at the first letter."}]
    assert (first["label"], second["label"]) == (True, False)
    assert [m["role"] for m in second["prompt"]] == ["system", "user", "assistant", "user"]
    assert second["prompt"][2]["content"] == "Look at the first letter."
    assert (second["run"], second["dialogue"], second["turn"], second["source"]) == (
        "7",
        "dialogue:train:d",
        1,
        "detector",
    )


def test_a_hint_without_a_label_is_in_no_unpaired_row_but_joins_the_next_step() -> None:
    turns = [
        turn(TASK, 0, wrong(TASK, 0), "nobody read this", None),
        turn(TASK, 1, wrong(TASK, 1), "a leak", True),
        turn(TASK, 2, wrong(TASK, 2), "nobody read that", None),
        turn(TASK, 3, wrong(TASK, 3), None),
    ]
    made = record(event(TASK, turns, name="d"))
    assert [row["turn"] for row in unpaired(made, decisions(made))] == [1]
    (row,) = stepwise(made, decisions(made))
    assert row["prompt"] == PROBLEM
    assert row["completions"] == [
        f"Student: {wrong(TASK, 0)}\nTeacher: nobody read this\nStudent: {wrong(TASK, 1)}\nTeacher: a leak"
    ]
    assert (row["labels"], row["turns"], row["sources"]) == ([False], [1], ["detector"])


def test_messages_are_what_the_student_read_with_a_list_entry_for_each_turn() -> None:
    made = record(three_turns(phase="evaluation", step=0, checkpoint="rl@2", condition="hints"))
    (row,) = messages(made, decisions(made))
    assert [m["role"] for m in row["messages"]] == [
        "system", "user", "assistant", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert row["messages"][0]["content"] == ENVIRONMENT.system_prompt()
    assert row["messages"][1]["content"] == PROBLEM
    assert row["solved_at"] == 3 and row["checkpoint"] == "rl@2" and row["condition"] == "hints"
    assert row["hint_labels"] == ["no_leak", "leak", ""]
    assert [leak["state"] for leak in row["leaks"]] == ["clean", "leak", ""]
    assert {len(row[k]) for k in ("turns", "verdicts", "rewards", "hints", "leaks", "hint_labels", "human_labels")} == {
        3
    }
    assert "labels" not in row  # SFTTrainer would take it for token labels
    assert set(row) == set(FORMATS["messages"].columns)


def test_rows_carry_the_bits_of_each_hint() -> None:
    bits = {"hint_bits": 2.5, "bits_left": 0.0, "determines_answer": True}
    told = three_turns()
    first, second, third = told.dialogue.turns
    turns = (first.model_copy(update=bits), second, third.model_copy(update={"bits_used": 1.5}))
    made = record(told.model_copy(update={"dialogue": told.dialogue.model_copy(update={"turns": turns})}))
    (row,) = messages(made, decisions(made))
    assert (row["hint_bits"], row["bits_left"]) == ([2.5, None, None], [0.0, None, None])
    assert (row["determines_answer"], row["bits_used"]) == ([True, False, False], [None, None, 1.5])
    clean, leaking = unpaired(made, decisions(made))
    assert {name: clean[name] for name in bits} == bits
    assert (leaking["hint_bits"], leaking["determines_answer"]) == (None, False)


def test_attempts_that_were_never_answered_are_conversations_of_their_own() -> None:
    turns = [turn(TASK, k, wrong(TASK, k), None) for k in range(3)]
    made = record(event(TASK, turns, name="d", phase="evaluation", step=0, checkpoint="base", condition="resample"))
    rows = list(messages(made, decisions(made)))
    assert [row["segment"] for row in rows] == [0, 1, 2]
    assert all([m["role"] for m in row["messages"]] == ["system", "user", "assistant"] for row in rows)
    assert teacher_prompt(made, 2)[1]["content"].endswith(wrong(TASK, 2))


def test_an_observation_is_part_of_the_conversation_with_and_without_a_hint() -> None:
    (event,) = taxi_events()
    made = from_event(event, "7", "a run", TaskRenderer.of(None))
    first = event.dialogue.turns[0]
    (row,) = messages(made, [None, None])
    assert [m["role"] for m in row["messages"]] == ["user", "assistant", "user", "assistant"]
    assert row["messages"][2]["content"] == first.verdict.observation and row["stop_reason"] == "ended"
    assert row["messages"][0]["content"].startswith("Pick up the passenger")
    assert f"Observation:\n{first.verdict.observation}" in teacher_prompt(made, 0)[1]["content"]


def test_a_changed_hint_is_labelled_as_it_was_written_and_read_as_it_was_changed() -> None:
    turns = [
        turn(TASK, 0, wrong(TASK, 0), "It is […].", True, feedback="It is A B."),
        turn(TASK, 1, wrong(TASK, 1), "Look again."),
        turn(TASK, 2, wrong(TASK, 2), None),
    ]
    made = record(event(TASK, turns, name="d"))
    first, second = unpaired(made, decisions(made))
    assert first["completion"][0]["content"] == "It is A B." and first["label"] is False
    assert second["prompt"][2]["content"] == "It is […]."
    (row,) = messages(made, decisions(made))
    assert row["messages"][3]["content"] == "It is […]." and row["hints"][0] == "It is A B."


def test_a_hint_that_ended_the_dialogue_is_data_but_no_message() -> None:
    dropped = turn(TASK, 0, wrong(TASK, 0), "", True, feedback="It is A B.")
    made = record(event(TASK, [dropped], name="d", stop=StopReason.DROPPED))
    (row,) = messages(made, decisions(made))
    assert [m["role"] for m in row["messages"]] == ["system", "user", "assistant"]
    (unpaired_row,) = unpaired(made, decisions(made))
    assert unpaired_row["completion"][0]["content"] == "It is A B."


def secret(events: list[DialogueEvent], tmp_path: Path, **more: Any) -> dict[str, list[dict[str, Any]]]:
    """Export events whose tasks have a marked answer that no attempt or hint names; the rows of every type."""
    run = write_run(tmp_path / "run", events)
    export([FolderSource(run)], (settings := ExportSettings(**more)), tmp_path / "out")
    return {name: rows_of(tmp_path / "out" / f"{name}.jsonl") for name in settings.formats}


def test_the_answer_is_in_no_prompt_unless_it_is_asked_for(tmp_path: Path) -> None:
    events = []
    for number in range(3):
        task = ENVIRONMENT.task("train", number)
        turns = [
            turn(task, 0, "no idea", "Try a letter."),
            turn(task, 1, "still none", "A leak of another kind.", True),
            turn(task, 2, "none", None),
        ]
        events.append(event(task, turns, name=f"d{number}"))
    tasks = {e.task.id: answer(e.task) for e in events}

    def told(rows: dict[str, list[dict[str, Any]]]) -> set[bool]:
        found = set()
        for name, held in rows.items():
            for row in held:
                prompt = row["messages"] if name == "messages" else row["prompt"]
                found.add(tasks[row["task"]] in json.dumps(prompt))
        return found

    assert told(secret(events, tmp_path / "a")) == {False}
    assert told(secret(events, tmp_path / "b", privileged=True)) == {True}
    assert "Warning: the prompts show the answer" in (tmp_path / "b" / "out" / "README.md").read_text()
    assert "Warning" not in (tmp_path / "a" / "out" / "README.md").read_text()


# -- pairs -----------------------------------------------------------------------------------------------------------
def pairs(events: list[DialogueEvent], path: Path, *, seed: int = 0, per_leak: int = 1, loosest: Any = "task") -> list:
    finder = PairFinder(path, seed, per_leak, loosest)
    for dialogue in events:
        made = record(dialogue)
        finder.add(made, decisions(made))
    rows = list(finder.rows())
    finder.close()
    return rows


def one_hint(name: str, attempt: int, hint: str, leaked: bool, number: int = 0) -> DialogueEvent:
    task = ENVIRONMENT.task("train", number)
    return event(task, [turn(task, 0, wrong(task, attempt), hint, leaked)], name=name)


def test_a_pair_takes_the_closest_leak_free_hint_and_its_prompt_shows_what_both_answer(tmp_path: Path) -> None:
    leak, other = one_hint("a", 0, "leak", True), one_hint("b", 1, "for another attempt", False)
    same = one_hint("c", 0, "for the same attempt", False)
    foreign = one_hint("d", 0, "for another task", False, number=1)
    (row,) = pairs([leak, other, same, foreign], tmp_path / "1")
    assert (row["match"], row["chosen"][0]["content"]) == ("history", "for the same attempt")
    assert row["rejected"][0]["content"] == "leak" and row["rejected_dialogue"] == "dialogue:train:a"
    assert row["prompt"][1]["content"] == f"Problem:\n{PROBLEM}\n\nAttempt:\n{wrong(TASK, 0)}"
    (row,) = pairs([leak, other, foreign], tmp_path / "2")
    assert (row["match"], row["chosen"][0]["content"]) == ("task", "for another attempt")
    assert row["prompt"][1]["content"] == f"Problem:\n{PROBLEM}\n\nAttempt:\n{wrong(TASK, 1)}"
    assert pairs([leak, foreign], tmp_path / "3") == []
    assert pairs([leak, other], tmp_path / "4", loosest="history") == []


def test_the_same_attempt_after_another_history_comes_second(tmp_path: Path) -> None:
    later = event(
        TASK,
        [turn(TASK, 0, wrong(TASK, 2), "first"), turn(TASK, 1, wrong(TASK, 0), "later hint")],
        name="later",
    )
    rows = pairs([one_hint("a", 0, "leak", True), later, one_hint("b", 1, "far", False)], tmp_path / "1", per_leak=3)
    assert next((row["match"], row["chosen"][0]["content"]) for row in rows) == ("attempt", "later hint")
    assert {row["match"] for row in rows[1:]} == {"task"}
    assert rows[0]["prompt"][1]["content"] == f"Problem:\n{PROBLEM}\n\nAttempt:\n{wrong(TASK, 0)}"


def test_pairs_have_different_words_count_once_and_follow_the_seed(tmp_path: Path) -> None:
    clean = [one_hint(f"c{k}", 0, f"clean {k}", False) for k in range(8)]
    leaks = [one_hint("a", 0, "leak", True), one_hint("again", 0, "leak", True), one_hint("x", 0, "clean 1", True)]
    first = pairs([*clean, *leaks], tmp_path / "1", per_leak=3)
    assert len(first) == 6  # the repeated leak counts once
    assert all(row["chosen"] != row["rejected"] for row in first)
    assert len({(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in first}) == 6
    assert pairs([*clean, *leaks], tmp_path / "2", per_leak=3) == first
    others = [pairs([*clean, *leaks], tmp_path / f"s{seed}", per_leak=3, seed=seed) for seed in range(1, 5)]
    assert any(rows != first for rows in others)
