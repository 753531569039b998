"""Elements of the page Compare."""

from __future__ import annotations

import json
from typing import Any

from page_nodes import texts

from app.endpoints.compare import (
    ComparedRunRow,
    ConfigGroup,
    EvaluationComparison,
    PartState,
    RunComparison,
    StudyState,
)
from app.pages.compare import view
from app.plots.comparison import ConfigDifference
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.evaluation.across_seeds import Comparison, SeedRow
from rl2f_core.evaluation.study.report import ArmResult, HypothesisResult
from rl2f_core.evaluation.study.spec import Hypothesis


def run(number: int, name: str = "small") -> Any:
    return ComparedRunRow(
        id=number,
        name=name,
        kind="train",
        status="succeeded",
        folder=f"{number}-{name}",
        environment="guess_number",
        method="rl2f",
        model="tiny-random",
        color=f"--rl-plot-{number}",
        dash="solid",
    )


def cell(value: float) -> dict[str, Any]:
    return {"text": f"{value:.2f} [.10, .20]", "value": value, "low": 0.1, "high": 0.2, "n": 6}


def evaluation(turns: int, *rows: tuple[str, str, float]) -> dict[str, Any]:
    columns = [{"key": "cum_acc/T", "title": "solved", "help": "Solved."}]
    made = [{"checkpoint": c, "control": condition, "cells": {"cum_acc/T": cell(v)}} for c, condition, v in rows]
    return {"turns": turns, "whole": True, "table": {"columns": columns, "rows": made, "reference_policies": []}}


def tables(node: Any) -> list[list[list[str]]]:
    """Texts of the rows of each table of an element."""
    if not isinstance(node, list):
        return []
    if node[0] == "table":
        return [[["".join(texts(each)) for each in row[2:]] for part in node[2:] for row in part[2:]]]
    return [table for child in node[2:] for table in tables(child)]


def test_the_rows_of_a_checkpoint_are_adjacent_whatever_run_has_them() -> None:
    evaluations = {
        1: evaluation(3, ("base", "hints", 0.1), ("rl@3", "hints", 0.2)),
        2: evaluation(3, ("base", "hints", 0.3), ("base", "contentless", 0.4)),
    }
    (rows,) = tables(view.evaluation_matrix(evaluations, {1: run(1), 2: run(2)}, "cum_acc/T"))
    assert [row[:2] for row in rows[1:]] == [["base", "hints"], ["", "contentless"], ["rl@3", "hints"]]
    assert rows[2][2] == "–" and rows[2][3].startswith("0.40")


def test_the_title_of_the_last_turn_names_it_when_all_runs_have_the_same_one() -> None:
    same, other = evaluation(3, ("base", "hints", 0.1)), evaluation(5, ("base", "hints", 0.1))
    assert view.quantity_choices({1: same, 2: same}) == [("solved within 3 turns", "cum_acc/T")]
    assert view.quantity_choices({1: same, 2: other}) == [("solved within all turns", "cum_acc/T")]


def test_the_default_base_is_the_last_checkpoint_of_the_first_run() -> None:
    found = EvaluationComparison.model_construct(checkpoints=["1:base", "1:rl@3", "2:base"])
    assert view.base_choices(found) == [("1:base", "1:base"), ("1:rl@3", ""), ("2:base", "2:base")]


def test_a_section_that_a_run_lacks_is_folded() -> None:
    lacking = [ConfigDifference(key=f"stages.rl.{k}", values=["1", "–"]) for k in "ab"]
    groups = [
        ConfigGroup(section="run", differences=[ConfigDifference(key="seed", values=["0", "1"])]),
        ConfigGroup(section="stage rl", differences=lacking),
    ]
    found = view.config_table(groups, [run(1), run(2, "other")])
    shared, folded = tables(found)
    assert shared[1:] == [["run"], ["seed", "0", "1"]]
    assert [row[0] for row in folded[1:]] == ["stages.rl.a", "stages.rl.b"]
    assert "2 keys, only in 1 small" in texts(found)


def test_one_run_has_no_differences_and_equal_runs_say_so() -> None:
    assert view.config_table([], [run(1)]) is None
    assert "The resolved configurations are the same." in texts(view.config_table([], [run(1), run(2)]))


def test_checkpoints_that_cannot_be_paired_name_the_reason() -> None:
    row = {"checkpoint": "2:base", "unlike": ["environment"], "quantities": []}
    found = EvaluationComparison.model_construct(base="1:base", differences=[row], pending=3)
    (rows,) = tables(view.paired_table(found))
    assert rows[1:] == [["2:base", "not comparable: environment differs"], ["3 more…"]]


def test_missing_runs_are_named_with_a_button() -> None:
    found = RunComparison.model_construct(runs=[run(1, "<b>x</b>")], missing=[8, 9])
    shown = view.run_chips(found)
    assert "There are no runs 8, 9: deleted, or the link is wrong. " in texts(shown)
    assert "1 <b>x</b>" in texts(shown) and '"data-action": "remove"' in json.dumps(shown)


def test_the_report_of_a_study_links_to_dialogues_and_stops_while_parts_are_active() -> None:
    link = "/dialogues?run=2&phase=evaluation&checkpoint=rl2f@3&condition=hints"
    fields = {"name": "[0](javascript:x)", "quantity": "solved", "compare": ["a", "b"], "smallest_effect": 0.1}
    difference = Interval(value=0.6, low=0.2, high=0.9, n=20, holm_p=0.01)
    tested = HypothesisResult(
        hypothesis=Hypothesis.model_validate(fields),
        comparison=Comparison(values=(0.6,), difference=difference, detectable=0.4, tokens=(100, 120)),
        finding="confirmed",
        dialogues=({"0": link}, {"0": ""}),
    )
    row = SeedRow(checkpoint="rl2f@3", condition="hints", quantity="cum_acc/2", values=(0.8,), mean=difference)
    state = StudyState(
        name="tiny", registered=("2030", "abc"), changes=(), missing=(), hypotheses=(tested,),
        arms=(ArmResult(arm="a", row=row, dialogues={"0": link}),),
        parts={"a-seed-0": PartState(run=2, status="succeeded"), "b-seed-0": PartState(run=3, status="queued")},
    )  # fmt: skip
    shown = view.study_section(state, True)
    (_, hypothesis), (_, arm) = tables(shown)
    assert hypothesis == ["[0](javascript:x)", "confirmed", "+.60 [.20, .90]", "–", ".01", ".10", ".40",
                          "NOT equal (-17 %): 100 and 120", "solved", "a 0 − b"]  # fmt: skip
    assert arm[-1] == ".80" and str(shown).count(f"'href': '{link}'") == 2
    assert "Stop all" in texts(shown) and "Resume" not in texts(shown)
    ended = state.model_copy(update={"parts": {"a-seed-0": PartState(run=2, status="failed")}})
    assert "Resume" in texts(view.study_section(ended, True))
    assert not {"Stop all", "Resume"} & {*texts(view.study_section(ended, False))}
