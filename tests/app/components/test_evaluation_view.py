"""Evaluation as elements: intervals, whiskers, reference policies, links, and texts that stay text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from page_nodes import elements, text

from app.components.elements.evaluation_view import (
    conclusions_card,
    dialogues_link,
    difference_table,
    evaluation_sheet,
    number,
    outcome_table,
    value_range,
    whisker,
)


def cell(value: float, low: float | None = None, high: float | None = None, **more: Any) -> dict[str, Any]:
    text = f"{value:.2f}" if low is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"
    return {"text": text, "value": value, "low": low, "high": high, "n": 10, **more}


def evaluation(**changes: Any) -> dict[str, Any]:
    columns = [
        {"key": "cum_acc/1", "title": "t = 1", "help": "Solved at the first turn.", "formula": "solved at 1 / all"},
        {"key": "cum_acc/T", "title": "t = 3", "help": "Solved within all turns."},
        {"key": "effect", "title": "hint effect", "help": "Against contentless."},
    ]
    rows = [
        {
            "checkpoint": "rl@6",
            "control": control,
            "cells": {"cum_acc/1": cell(0.2), "cum_acc/T": None, "effect": effect},
        }
        for control, effect in (("hints", cell(0.5, 0.3, 0.7)), ("contentless", None))
    ]
    reference_policies = [{"name": "optimal with hints", "values": [{"turn": t, "text": f".{t}"} for t in (1, 2, 3)]}]
    return {
        "turns": 3,
        "table": {"columns": columns, "rows": rows, "reference_policies": reference_policies},
        "attempts": None,
        "answers": {"Did the hints help?": "Yes."},
        "conclusions": {"Effects of hints and controls": ["hints help"]},
        "differences": [],
        **changes,
    }


def test_an_interval_is_smaller_than_its_value_and_a_missing_value_is_a_dash() -> None:
    shown = number(cell(0.31, 0.2, 0.42))
    assert text(shown) == "0.31 [0.20, 0.42]" and text(elements(shown, "small")[0]) == "[0.20, 0.42]"
    assert shown[1]["title"] == "n = 10"  # type: ignore[index, call-overload]
    assert text(number(None)) == "–"
    assert text(number(cell(0.3, constant_baseline="not above .3"))) == "0.30 ≈ const"


def test_each_checkpoint_is_named_once_and_its_conditions_link_to_dialogues() -> None:
    table = outcome_table(evaluation(), dialogues_link(7))
    rows = [[text(td) for td in elements(row, "td")] for row in elements(table, "tr")[1:]]
    assert rows[0] == ["rl@6", "hints", "0.20", "–", "0.50 [0.30, 0.70]"]
    assert rows[1] == ["", "contentless", "0.20", "–", "0 by definition"]
    assert rows[2] == ["reference", "optimal with hints", ".1", ".3", ""]
    href = elements(table, "a")[0][1]["href"]
    assert href == "/dialogues?run=7&phase=evaluation&checkpoint=rl@6&condition=hints"


def test_every_column_explains_its_metric_with_a_formula() -> None:
    header = elements(outcome_table(evaluation(), dialogues_link(7)), "thead")[0]
    tips = elements(header, "details")
    assert len(tips) == 3 and text(tips[0]) == "?Solved at the first turn.solved at 1 / all"
    assert elements(tips[0], "summary")[0][1]["aria-label"] == "Explain t = 1"


@pytest.mark.parametrize(
    ("low", "high", "color"), [(0.1, 0.3, "--rl-text"), (-0.1, 0.3, "--rl-muted"), (-0.3, -0.1, "--rl-text")]
)
def test_a_whisker_is_dark_if_its_interval_excludes_zero(low: float, high: float, color: str) -> None:
    picture = whisker(cell((low + high) / 2, low, high), -0.5, 0.5)
    assert picture is not None and elements(picture, "svg:circle")[0][1]["fill"] == f"var({color})"


def test_whiskers_share_a_range_that_contains_zero() -> None:
    assert value_range([cell(0.5, 0.3, 0.7), None]) == (-0.1, 0.7)
    assert value_range([]) == (-0.1, 0.1)


def test_a_sheet_has_differences_only_if_there_are_any() -> None:
    difference = {
        "quantity": "hint_effect",
        "checkpoint": "rl@6",
        "against": "base",
        "cell": cell(0.2, 0.1, 0.3),
        "finding": "higher",
    }
    full = evaluation_sheet(evaluation(differences=[difference], attempts=evaluation()["table"]), dialogues_link(1))
    assert [text(h) for h in elements(full, "h2")] == ["Differences between checkpoints"]
    assert "rl@6 − basehint effect" in text(difference_table([difference])) and "Attempt outcomes" in text(full)
    bare = evaluation_sheet(evaluation(answers={}, conclusions={}), dialogues_link(1))
    assert elements(bare, "h2") == [] and "Attempt outcomes" not in text(bare)


def test_markup_in_names_remains_text() -> None:
    evil = "<img src=x onerror=alert(1)>"
    given = evaluation(conclusions={"Notes": [evil]})
    given["table"]["rows"][0]["checkpoint"] = evil
    for sheet in (evaluation_sheet(given, dialogues_link(1)), conclusions_card(given)):
        assert evil in text(sheet) and elements(sheet, "img") == []
        json.dumps(sheet)


def test_the_answers_come_first_and_the_other_conclusions_are_folded() -> None:
    card = conclusions_card(evaluation())
    assert text(card).startswith("ConclusionsDid the hints help?Yes.")
    (fold,) = elements(card, "details")
    assert "hints help" in text(fold) and "open" not in fold[1]
    (fold,) = elements(conclusions_card(evaluation(answers={})), "details")
    assert fold[1]["open"] is True
    assert conclusions_card(evaluation(answers={}, conclusions={})) is None
