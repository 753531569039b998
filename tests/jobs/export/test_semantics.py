"""What rows teach: no type prefers a false or leaking hint, and controls are excluded unless they are requested."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from export_builders import ENVIRONMENT, answer, event, rows_of, turn, write_run, wrong

from jobs.export.datasets.dataset_types import FORMATS
from jobs.export.datasets.exporter import export, summary
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import FolderSource
from rl2f_core.common.paths import EXAMPLE_RUNS, ROOT
from rl2f_core.errors import DataError
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import Hint, LeakReport, Task, Turn

TASK = ENVIRONMENT.task("train", 0)
RIGHT = f"<answer>{answer(TASK)}</answer>"
Rows = dict[str, list[dict[str, Any]]]


def said(text: str, leaked: bool | None = False, teacher: str = "scripted", task: Task = TASK, **more: Any) -> Turn:
    """A wrong attempt with a hint."""
    report = None if leaked is None else LeakReport(leaked=leaked, detector="exact" if leaked else None)
    hint = Hint(text=text, teacher=teacher, leak=report, **more)
    return turn(task, 0, wrong(task), None).model_copy(update={"hint": hint})


def dialogue(name: str, hints: Sequence[Turn], *, solved: bool = True, **more: Any) -> DialogueEvent:
    """Wrong attempts with these hints, and then the right answer."""
    turns = [each.model_copy(update={"index": i}) for i, each in enumerate(hints)]
    return event(TASK, [*turns, turn(TASK, len(turns), RIGHT, None)] if solved else turns, name=name, **more)


def evaluated(name: str, condition: str, hint: Turn) -> DialogueEvent:
    return dialogue(name, [hint], phase="evaluation", step=0, checkpoint="rl@2", condition=condition)


def every_control() -> list[DialogueEvent]:
    """One dialogue of every condition with a hint, and one training dialogue of a control as the run's teacher."""
    return [
        dialogue("own", [said("Look at the first letter.")]),
        dialogue("leak", [said("It leaks.", True)]),
        evaluated("eval", "hints", said("Look at the second letter.")),
        evaluated("shuffled", "shuffled", said("Of another task.", teacher="shuffled", source_task="other")),
        evaluated("shuffled leak", "shuffled", said("Leaks by chance.", True, "shuffled", source_task="other")),
        evaluated("misleading", "misleading", said("Points away.", teacher="misleading")),
        evaluated("contentless", "contentless", said("Try again.", teacher="contentless")),
        evaluated("no_oracle", "no_oracle", said("You may be wrong.", teacher="self_critique")),
        dialogue("resample", [], phase="evaluation", step=0, checkpoint="rl@2", condition="resample"),
        dialogue("fork", [said("Edited.", teacher="edited")], phase="fork", step=0, arm="edited"),
        dialogue("misled training", [said("Away, too.", teacher="misleading")]),
    ]


def exported(tmp_path: Path, events: Sequence[DialogueEvent], **settings: Any) -> tuple[dict[str, Any], Rows]:
    run = write_run(tmp_path / "run", events)
    made = ExportSettings(**{"formats": list(FORMATS), "pairs_per_leak": 9, "files": ["jsonl"], **settings})
    manifest = export([FolderSource(run)], made, tmp_path / "out")
    assert manifest is not None
    rows = {name: rows_of(tmp_path / "out" / f"{name}.jsonl") for name in manifest["formats"]}
    return manifest, rows


def completions(rows: Rows) -> dict[str, bool]:
    """Hint → KTO label."""
    return {row["completion"][0]["content"]: row["label"] for row in rows["unpaired_preference"]}


# -- controls ----------------------------------------------------------------------------------------------------------
def test_no_type_has_a_row_of_a_control_by_default(tmp_path: Path) -> None:
    _, rows = exported(tmp_path, every_control())
    own = {"dialogue:train:own", "dialogue:train:leak", "dialogue:evaluation:rl@2:hints:eval"}
    for name in set(FORMATS) - {"preference", "prompt_completion"}:
        assert {row["dialogue"] for row in rows[name]} == own, name
    assert {row["dialogue"] for row in rows["prompt_completion"]} == own - {"dialogue:train:leak"}
    assert {row["chosen_dialogue"] for row in rows["preference"]} == own - {"dialogue:train:leak"}
    text = json.dumps(rows)
    for control in ("Of another task", "Leaks by chance", "Points away", "Try again", "may be wrong", "Edited", "Away"):
        assert control not in text


def test_excluded_controls_are_counted_by_teacher_and_by_condition(tmp_path: Path) -> None:
    """Under other conditions: 2 shuffled, misleading, contentless, no_oracle, resample, fork; and the teacher's."""
    manifest, _ = exported(tmp_path, every_control())
    assert manifest["runs"][0]["excluded"]["include_controls"] == 8 and manifest["dialogues"] == 3
    assert "Excluded: 8 dialogues of controls (--include-controls)." in summary(manifest)
    assert "- 8 dialogues of controls are excluded" in (tmp_path / "out" / "README.md").read_text()


def test_included_controls_are_named_by_condition_and_teacher_in_every_type(tmp_path: Path) -> None:
    _, rows = exported(tmp_path, every_control(), filter={"include_controls": True})
    conditions = {"", "hints", "shuffled", "misleading", "contentless", "no_oracle", "edited"}
    for name in ("stepwise_supervision", "unpaired_preference"):
        assert {row["condition"] for row in rows[name]} == conditions, name
    for name in ("messages", "prompt_completion"):
        assert {row["condition"] for row in rows[name]} == conditions | {"resample"}, name
    training = [row for row in rows["unpaired_preference"] if row["condition"] == ""]
    assert {row["teacher"] for row in training} == {"scripted", "misleading"}


def test_a_false_hint_is_never_chosen_nor_labeled_good(tmp_path: Path) -> None:
    _, rows = exported(tmp_path, every_control(), filter={"include_controls": True})
    assert completions(rows) == {
        "Look at the first letter.": True,
        "It leaks.": False,
        "Look at the second letter.": True,
        "Of another task.": False,
        "Leaks by chance.": False,
        "Points away.": False,
        "Try again.": True,
        "You may be wrong.": True,
        "Edited.": True,
        "Away, too.": False,
    }
    labels = {row["dialogue"].rpartition(":")[2]: row["labels"] for row in rows["stepwise_supervision"]}
    assert labels["misleading"] == labels["shuffled"] == labels["misled training"] == labels["leak"] == [False]
    assert labels["own"] == labels["eval"] == [True]
    pairs = {(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows["preference"]}
    assert {rejected for _, rejected in pairs} == {"It leaks.", "Leaks by chance."}
    assert not {chosen for chosen, _ in pairs} & {"Of another task.", "Points away.", "Away, too.", "It leaks."}
    by_text = {row["rejected"][0]["content"]: row for row in rows["preference"]}
    assert (by_text["Leaks by chance."]["rejected_condition"], by_text["Leaks by chance."]["rejected_teacher"]) == (
        "shuffled", "shuffled",
    )  # fmt: skip


@pytest.mark.parametrize("condition", ["shuffled", "contentless"])
def test_an_export_of_controls_alone_says_how_to_include_them(tmp_path: Path, condition: str) -> None:
    events = [each for each in every_control() if each.condition == condition]
    with pytest.raises(DataError, match=r"only \d of controls.*--include-controls"):
        exported(tmp_path, events)
    _, rows = exported(tmp_path / "again", events, filter={"include_controls": True})
    assert rows["messages"]


def test_a_run_whose_teacher_is_a_control_says_how_to_include_it(tmp_path: Path) -> None:
    events = [dialogue("d", [said("Away.", teacher="misleading")])]
    with pytest.raises(DataError, match=r"only 1 of controls"):
        exported(tmp_path, events)


# -- planted leaks -----------------------------------------------------------------------------------------------------
def planted_events() -> list[DialogueEvent]:
    """A base hint, a planted leak that the detector missed, and one that it found."""
    return [
        dialogue("base", [said("Look again.", teacher="leaky")]),
        dialogue("missed", [said("Swap two letters.", teacher="leaky", planted="exchange_of_places")]),
        dialogue("found", [said("Base64.", True, "leaky", planted="base64")]),
    ]


@pytest.mark.parametrize("labels", ["both", "detector"])
def test_a_planted_leak_is_a_leak_even_if_no_detector_found_it(tmp_path: Path, labels: str) -> None:
    manifest, rows = exported(tmp_path, planted_events(), labels=labels)
    assert completions(rows) == {"Look again.": True, "Swap two letters.": False, "Base64.": False}
    kinds = {row["completion"][0]["content"]: (row["planted"], row["source"]) for row in rows["unpaired_preference"]}
    assert kinds == {
        "Look again.": ("", "detector"),
        "Swap two letters.": ("exchange_of_places", "planted"),
        "Base64.": ("base64", "planted"),
    }
    assert {(row["chosen"][0]["content"], row["rejected_planted"]) for row in rows["preference"]} == {
        ("Look again.", "exchange_of_places"), ("Look again.", "base64"),
    }  # fmt: skip
    assert manifest["labels"]["planted"] == {"leak": 2}


def test_no_planted_kind_is_in_a_prompt_or_message(tmp_path: Path) -> None:
    _, rows = exported(tmp_path, planted_events(), privileged=True)
    for name, listed in rows.items():
        for row in listed:
            texts = {k: row[k] for k in ("prompt", "messages", "completion", "completions", "chosen") if k in row}
            assert "exchange_of_places" not in json.dumps(texts) and "base64" not in json.dumps(texts), name


def test_a_right_attempt_after_a_leak_that_was_read_is_no_answer_to_learn(tmp_path: Path) -> None:
    events = [
        dialogue("clean", [said("Look.")]),
        dialogue("leak", [said("It leaks.", True)]),
        dialogue("late", [said("It leaks.", True), said("Look.")]),
        dialogue("missed", [said("Swap.", teacher="leaky", planted="exchange_of_places")]),
        dialogue("replaced", [said("Try again.", True, feedback="It leaks.")]),
    ]
    _, rows = exported(tmp_path, events, formats=["prompt_completion"])
    assert {row["dialogue"].rpartition(":")[2] for row in rows["prompt_completion"]} == {"clean", "replaced"}


def test_without_a_label_a_known_leak_ends_the_answers_to_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only labels of people count, and nobody labeled these hints."""
    monkeypatch.setattr(FolderSource, "has_human_labels", True)
    events = [
        dialogue("clean", [said("Look.")]),
        dialogue("flagged", [said("It leaks.", True)]),
        dialogue("planted", [said("Swap.", teacher="leaky", planted="exchange_of_places")]),
    ]
    manifest, rows = exported(tmp_path, events, formats=["prompt_completion"], labels="human")
    assert {row["dialogue"].rpartition(":")[2] for row in rows["prompt_completion"]} == {"clean"}
    assert manifest["labels"]["planted"] == {}
    assert "needs no detector" not in (tmp_path / "out" / "README.md").read_text()


def test_a_manifest_has_no_folder_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "alice" / "questions.csv"
    file.parent.mkdir()
    shutil.copy(ROOT / "data" / "own_questions" / "sample.csv", file)
    environment = {"type": "dataset", "path": str(file)}
    source = FolderSource(write_run(tmp_path / "run", planted_events(), environment=environment))
    manifest = export([source], ExportSettings(files=["jsonl"]), tmp_path / "out")
    assert manifest is not None and manifest["runs"][0]["environment"]["path"] == "questions.csv"
    assert "alice" not in (tmp_path / "out" / "manifest.json").read_text()


# -- card --------------------------------------------------------------------------------------------------------------
def test_the_card_counts_hints_by_teacher_and_condition(tmp_path: Path) -> None:
    events = [*every_control(), *planted_events()]
    manifest, _ = exported(tmp_path, events, filter={"include_controls": True})
    found = {(row["teacher"], row["condition"]): row for row in manifest["origins"]}
    assert found["scripted", ""] == {
        "teacher": "scripted", "condition": "", "hints": 2, "leak": 1, "no_leak": 1, "planted": 0,
    }  # fmt: skip
    assert found["shuffled", "shuffled"]["leak"] == 1 and found["misleading", ""]["hints"] == 1
    assert found["leaky", ""] == {
        "teacher": "leaky", "condition": "", "hints": 3, "leak": 0, "no_leak": 1, "planted": 2,
    }  # fmt: skip
    assert manifest["own_leaks"] == 1
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| leaky | training | 3 | 0 | 1 | 2 |" in card and "| shuffled | shuffled | 2 | 1 | 1 | 0 |" in card
    assert "Controls are included" in card and "no leak comes from the teacher itself" not in card


def test_the_card_warns_if_no_leak_comes_from_the_teacher_itself(tmp_path: Path) -> None:
    manifest, _ = exported(tmp_path, planted_events())
    card = (tmp_path / "out" / "README.md").read_text()
    assert manifest["own_leaks"] == 0 and "All leaks here are planted or of controls." in card
    assert "no leak comes from the teacher itself" in card and "dialogues of controls are excluded" in card
    clean = [dialogue("own", [said("Look again.")])]
    exported(tmp_path / "b", clean)
    assert "No hint is labeled as a leak." in (tmp_path / "b" / "out" / "README.md").read_text()


# -- the recorded quickstart -------------------------------------------------------------------------------------------
def test_the_default_export_of_the_recorded_quickstart_has_no_hint_of_a_control(tmp_path: Path) -> None:
    settings = ExportSettings(formats=tuple(f for f in FORMATS if f != "preference"), files=("jsonl",))
    manifest = export([FolderSource(EXAMPLE_RUNS / "quickstart")], settings, tmp_path / "out")
    assert manifest is not None and manifest["own_leaks"] == 0
    assert {row["teacher"] for row in manifest["origins"]} == {"scripted"}
    assert {row["condition"] for row in manifest["origins"]} <= {"", "hints"}
    kto = rows_of(tmp_path / "out" / "unpaired_preference.jsonl")
    assert len(kto) > 100 and {row["teacher"] for row in kto} == {"scripted"}
    assert "no leak comes from the teacher itself" in (tmp_path / "out" / "README.md").read_text()
