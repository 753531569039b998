"""Elements of the page Fork."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import gradio as gr
from page_nodes import texts

from app.endpoints.fork import CheckpointChoice, ForkResult, HintScreening
from app.pages._query import QueryFields
from app.pages.fork import result, view
from app.pages.fork.page import DEFAULT_ARMS, _Page
from jobs.db.models import RunSummary

EVIL = "<img src=x onerror=alert(1)> ${1} {{2}}"


def interval(value: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "n": 4}


def arm(name: str, difference: dict[str, Any] | None, finding: str = "") -> dict[str, Any]:
    solved = interval(0.5, 0.2, 0.8)
    shared = {
        "score": solved,
        "score_difference": difference,
        "retained_parts": interval(None),
        "findings": {"difference": finding, "score_difference": finding},
    }
    return {"checkpoint": "base", "arm": name, "solved": solved, "difference": difference, **shared}


def found(text: str = "Too low.", status: str = "succeeded") -> Any:
    hint = {"text": text, "leak": {"leaked": True, "detector": "exact", "evidence": "4"}, "error": None}
    hints = {"checkpoint": "base", "hints_by_arm": {"edited": hint}, "hint_value": interval(0.25, 0.1, 0.4)}
    rows = [
        arm("original", interval(0.25, 0.1, 0.4), "higher"),
        arm("edited", interval(-0.1, -0.3, 0.1), "95 % CI includes 0"),
        arm("contentless", None),
    ]
    report = {
        "checkpoints": ["base"],
        "results": rows,
        "hints": [hints],
        "samples": 4,
        "later_hints": "run",
        "done": 12,
    }
    job = RunSummary(id=9, name="fork", kind="fork", folder="9-fork", status=status, done=3, total=12, eta=30.0)  # type: ignore[arg-type]
    return ForkResult(job=job, run=3, event_id="d", turn=0, samples=4, report=report)


def dialogue(*outcomes: bool) -> Any:
    turns = [SimpleNamespace(index=i, correct=correct, done=correct, hint=None) for i, correct in enumerate(outcomes)]
    outcome = "".join("1" if correct else "0" for correct in outcomes)
    return SimpleNamespace(run_id=3, event_id="d", turns=turns, outcomes=outcome)


def test_a_difference_is_marked_by_its_finding() -> None:
    shown = json.dumps(result.report_card(found().report), ensure_ascii=False)
    assert '"title": "higher"' in shown and shown.count("▲ ") == 2
    assert "95 % CI includes 0" in shown and "0 by definition" in shown


def test_the_plot_and_the_hint_value_are_described_in_words() -> None:
    card = result.report_card(found().report)
    shown = json.dumps(card, ensure_ascii=False)
    assert "solve rate: original hint .50 [.20, .80]; edited .50 [.20, .80]" in shown
    words = " ".join(texts(card))
    assert "Hint value  +.25  [+.10, +.40]" in words and "Later hints are the run's teacher's" in words


def test_the_outcomes_under_the_dialogues_own_seed_are_shown() -> None:
    report = found().report
    report["hints"][0]["same_seed"] = {"original": True, "redacted": False}
    shown = json.dumps(result.report_card(report), ensure_ascii=False)
    assert "own seed" in shown and '"title": "incorrect"' in shown
    assert "own seed" not in json.dumps(result.report_card(found().report))


def test_a_running_fork_shows_progress_and_can_be_stopped() -> None:
    shown = json.dumps(result.status_card(found(status="running"), writable=True))
    assert "3 of 12 dialogues" in shown and '"data-action": "stop"' in shown
    assert '"data-action": "stop"' not in json.dumps(result.status_card(found(status="running"), writable=False))
    assert "12 dialogues" in texts(result.status_card(found(), writable=True))


def test_the_tree_shows_hints_as_text_and_expands_open_arms_only() -> None:
    row = SimpleNamespace(event_id="e1", index=0, outcomes="01", error=None)
    page: Any = SimpleNamespace(rows=[row], total=5)
    shown = json.dumps(result.tree(found(EVIL), dialogue(False, True), {"base|edited": page}, {}), ensure_ascii=False)
    assert EVIL in shown and "⚑ exact leak" in shown
    assert shown.count('"aria-expanded": "true"') == 1 and shown.count('"aria-expanded": "false"') == 3
    assert "all 5 dialogues" in shown and "1 more attempt" in shown


def test_a_fork_needs_an_incorrect_attempt() -> None:
    played = dialogue(False, True)
    assert view.blocked_reason(played, 0) == "" and view.blocked_notice(played, 0) is None
    assert "correct" in view.blocked_reason(played, 1) and "no such turn" in view.blocked_reason(played, 2)
    assert "/fork?run=3&dialogue=d&turn=0" in json.dumps(view.blocked_notice(played, 1))
    played.turns[0].done = True
    assert "episode ended" in view.blocked_reason(played, 0)


def test_the_turns_before_a_fork_show_observations_and_no_empty_hints() -> None:
    turn: Any = SimpleNamespace(index=0, attempt="x", total_reward=-1.0, outcome="0", parsed="west", done=False)
    turn.observation, turn.reflection, turn.actions = "|T: :|", None, ()
    turn.hint = SimpleNamespace(text="", feedback="", planted=None, findings=[], leak_found=False, leak_checked=False)
    shown = json.dumps(view.turn_view(turn))
    assert "|T: :|" in shown and "Environment" in shown and "Teacher" not in shown
    turn.observation = None
    shown = json.dumps(view.turn_view(turn))
    assert "Environment" not in shown and "Teacher" in shown


def test_an_arm_without_a_stored_hint_says_so() -> None:
    assert view.arm_choices(["original", "empty"], has_hint=False) == [
        ("1 original hint: this attempt has no hint", "original"),
        ("2 empty: an empty message", "empty"),
    ]


def test_own_checkpoints_come_without_the_number_of_the_run() -> None:
    labels = {"base": "tiny", "3:rl@2": "x", "4:rl@2": "y"}
    choices = [CheckpointChoice(label=label, note=note) for label, note in labels.items()]
    assert [title for title, _ in view.checkpoint_choices(choices, 3)] == ["base · tiny", "rl@2", "4:rl@2 · y"]


def test_a_screened_hint_names_detector_and_evidence() -> None:
    clean = HintScreening(detectors=["exact"], leaked=False, detector=None, leak_type=None, start=None, end=None,
                          evidence="", answer_fraction=0.0)  # fmt: skip
    assert texts(view.screening_note("x", clean)) == ["✓ Edited hint: no leak found (exact)."]
    found = {"leaked": True, "detector": "exact", "start": 14, "end": 15, "answer_fraction": 1.0}
    leaking = clean.model_copy(update=found)
    note = view.screening_note("The number is 4.", leaking)
    assert "".join(texts(note)) == "⚑ Edited hint: exact leak: 4 · 100% of the answer"


def test_a_changed_text_selects_the_edited_hint_once() -> None:
    defaults = {"checkpoints": [], "arms": DEFAULT_ARMS, "text": "", "teacher": "scripted", "samples": 16}
    fields: Any = {name: (None, value) for name, value in {**defaults, "attempts": "", "later_hints": "run"}.items()}
    studio: Any = SimpleNamespace(fork=None, dialogues=None, context=SimpleNamespace(read_only=False))
    page, values = _Page(studio, QueryFields(fields)), [["base"], ["original"], "Look again.", "scripted", 4, "", "run"]
    address, state, arms, *_ = page.edit({}, {"text": "Too low.", "reason": "", "version": 0}, *values)
    assert arms == ["original", "edited"] and address["arms"] == "original,edited"
    assert address["text"] == state["text"] == "Look again."
    address, _, arms, *_ = page.edit({}, state, *values)
    assert arms == gr.skip() and address["arms"] == "original", "the user may deselect it"
