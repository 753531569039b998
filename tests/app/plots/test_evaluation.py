"""Evaluations from their reports and from their dialogues, cards, paired differences, seeds, configurations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from run_data import SHARES, TASKS, TURNS, add_run

from app.plots.comparison import (
    MISSING,
    CheckpointOutcomes,
    ComparedRun,
    checkpoint_difference,
    config_differences,
    overlay,
    paired_rows,
    seed_groups,
)
from app.plots.evaluation import (
    as_json,
    attempts,
    difference,
    effect_difference,
    from_levels,
    from_outcomes,
    from_report,
    incompatible_keys,
    read_levels,
    table,
)
from app.plots.summary_cards import cards
from jobs.db.engine import Database
from jobs.db.models import Metric
from jobs.db.queries import metrics, outcomes
from jobs.db.queries.run_values import flatten, group_key
from jobs.workspace import Workspace
from rl2f_core.errors import DataError
from rl2f_core.evaluation.levels.report import LevelInfo, build_levels
from rl2f_core.evaluation.report import EvaluatedTasks
from rl2f_core.evaluation.report_file import read_report
from rl2f_core.types import ConstantBaseline, Dialogue, StopReason, Turn, Verdict


def rows(*values: float, name: str = "reward") -> list[Metric]:
    return [
        Metric(run_id=1, stage="rl", step=i + 1, number=i, time=60.0 * i, tokens=10.0 * i, values={name: value})
        for i, value in enumerate(values)
    ]


def member(number: int, seed: int, *values: float, **config: object) -> ComparedRun:
    settings = {"seed": seed, "name": "small", **config}
    return ComparedRun(number, "small", rows(*values), None, settings, group_key(settings))


# -- evaluations ---------------------------------------------------------------------------------------------------
def test_dialogues_in_the_database_give_the_same_numbers_as_the_report(db: Database, workspace: Workspace) -> None:
    run = add_run(db, workspace, "a")
    report = read_report(workspace.folder("a"))
    assert report is not None and run.id is not None
    held = outcomes.evaluation(db, run.id)
    assert list(held) == list(SHARES) and all(len(by_task) == TASKS for by_task in held.values())
    counted, written = from_outcomes(held, TURNS), from_report(report)
    assert counted.effects == written.effects
    for key, found in counted.cells.items():
        for turn in range(1, TURNS + 1):
            assert found[f"cum_acc/{turn}"] == written.cells[key][f"cum_acc/{turn}"]


def test_paired_differences_of_checkpoints_equal_the_reports(db: Database, workspace: Workspace) -> None:
    run = add_run(db, workspace, "a")
    report = read_report(workspace.folder("a"))
    assert report is not None and run.id is not None
    held = outcomes.evaluation(db, run.id)
    expected = {d.quantity: d.difference for d in report.differences}
    assert set(expected) == {"cum_acc", "hint_effect"}
    uncorrected = {name: interval.model_copy(update={"holm_p": None}) for name, interval in expected.items()}
    assert difference(held["rl@6", "hints"], held["base", "hints"], TURNS) == uncorrected["cum_acc"]
    assert effect_difference(held, "rl@6", held, "base", TURNS) == uncorrected["hint_effect"]


def test_a_difference_worked_out_by_hand() -> None:
    a = {"t1": {1: 1}, "t2": {2: 1}, "t3": {None: 1}, "only a": {1: 1}}
    b = {"t1": {None: 1}, "t2": {3: 1}, "t3": {None: 1}}
    assert difference(a, b, 3).value == pytest.approx(1 / 3)  # t1
    assert difference(a, b, 2).value == pytest.approx(2 / 3)  # t1, t2
    assert difference(a, b, 3).n == 3
    assert difference(a, {}, 3).value is None


def test_a_damaged_report_is_an_error_and_a_missing_one_is_none(tmp_path: Path) -> None:
    assert read_report(tmp_path) is None
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "report.json").write_text('{"environment": ')
    with pytest.raises(DataError, match="damaged"):
        read_report(tmp_path)


def test_the_table_leaves_out_what_no_row_has(db: Database, workspace: Workspace) -> None:
    run = add_run(db, workspace, "a")
    held = outcomes.evaluation(db, run.id or 0)
    found = table(from_outcomes(held, TURNS))
    assert [column["key"] for column in found["columns"]] == ["cum_acc/1", "cum_acc/T", "effect"]
    report = read_report(workspace.folder("a"))
    assert report is not None
    whole = table(from_report(report))
    assert "plasticity" in [column["key"] for column in whole["columns"]]
    assert whole["reference_policies"][0]["name"] == "optimal with hints"
    assert whole["reference_policies"][0]["values"][-1] == {
        "turn": 3,
        "text": f"{report.references[-1].with_hints:.2f}".lstrip("0"),
    }


def test_a_mixtures_report_holds_the_same_for_each_of_its_environments(db: Database, workspace: Workspace) -> None:
    add_run(db, workspace, "a")
    report = read_report(workspace.folder("a"))
    assert report is not None
    shown = as_json(from_report(report.model_copy(update={"parts": (report.model_copy(update={"tasks": 11}),)})))
    (part,) = shown["parts"]
    assert part["title"] != shown["title"] and part["table"]["rows"] == shown["table"]["rows"] and part["parts"] == []
    assert part["findings"] and [chart["key"] for chart in part["charts"]]


def test_scores_no_better_than_the_constant_answer_are_marked(db: Database, workspace: Workspace) -> None:
    add_run(db, workspace, "a")
    report = read_report(workspace.folder("a"))
    assert report is not None and report.constant_baseline is not None
    shown = from_report(report.model_copy(update={"constant_baseline": ConstantBaseline(answer="5", score=0.5)}))
    cells = [row["cells"] for row in table(shown)["rows"]]
    marked = [c["cum_acc/1"]["value"] for c in cells if "constant_baseline" in c["cum_acc/1"]]
    assert marked and all(c["cum_acc/1"]["low"] > 0.5 for c in cells if "constant_baseline" not in c["cum_acc/1"])
    assert dict(shown.reference_policies or {})["best constant answer"] == [
        (t, 0.5) for t in range(1, report.turns + 1)
    ]
    found = attempts(from_report(report))
    assert found is not None
    for row in found["rows"]:
        shares = [held["value"] for key, held in row["cells"].items() if key.startswith("outcome/")]
        assert sum(shares) == pytest.approx(1)
    assert attempts(from_outcomes({}, TURNS)) is None


def test_an_evaluation_by_level_is_a_table_of_levels_and_copies_and_a_plot_by_level(tmp_path: Path) -> None:
    def answers(*right: bool, name: str) -> list[Dialogue]:
        return [
            Dialogue(
                id=f"{name}{i}",
                task_id=f"t{i}/{name}",
                group=f"t{i}",
                index=0,
                stop_reason=StopReason.SOLVED if hit else StopReason.EXHAUSTED,
                turns=(
                    Turn(
                        index=0,
                        attempt="a",
                        token_ids=(1,),
                        verdict=Verdict(correct=hit, score=float(hit), parsed="a", well_formed=True),
                    ),
                ),
            )
            for i, hit in enumerate(right)
        ]

    played = {"as it is": answers(True, True, False, name="o"), "again": answers(True, True, False, name="a"),
              "renamed": answers(True, False, False, name="r")}  # fmt: skip
    infos = [
        LevelInfo(name=f"people={n}", value=n, constant_baseline=ConstantBaseline(answer="knave", score=2.0**-n))
        for n in (2, 3)
    ]
    report = build_levels({"base": {info.name: played for info in infos}}, infos, environment="knights_knaves",
                          field="people", evaluated=EvaluatedTasks(3, 1), turns=1)  # fmt: skip
    assert read_levels(tmp_path) is None
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "levels.json").write_text(report.model_dump_json())
    found = as_json(from_levels(read_levels(tmp_path)))  # type: ignore[arg-type]
    assert found["whole"] and found["checkpoints"] == ["base"] and "LiMem" in " ".join(found["findings"])
    assert [c["key"] for c in found["table"]["columns"]][:4] == ["cum_acc/T", "consistency", "memorization",
                                                                 "memorization_above_resample"]  # fmt: skip
    rows = {row["control"]: row["cells"] for row in found["table"]["rows"]}
    assert set(rows) >= {"people=2", "people=2, again", "people=3, renamed", "all levels", "all levels, renamed"}
    assert rows["people=3, renamed"]["memorization"]["value"] == pytest.approx(1 / 3)
    assert (
        "constant_baseline" in rows["people=2"]["cum_acc/T"]
        and "constant_baseline" not in rows["all levels"]["cum_acc/T"]
    )
    (chart,) = found["charts"]
    lines = {trace["name"]: trace for trace in chart["figure"]["data"] if trace["meta"] == "line"}
    assert list(lines) == ["best constant answer", "as it is", "again", "renamed"]
    assert lines["renamed"]["x"] == [2, 3] and lines["best constant answer"]["y"] == [0.25, 0.125]
    assert found["attempts"]["rows"]


def test_cards_take_the_evaluation_where_there_is_one_and_the_newest_steps_else(
    db: Database, workspace: Workspace
) -> None:
    run = add_run(db, workspace, "a")
    steps = [row for row in metrics.steps(db, run.id or 0) if row.stage == "rl"]
    report = read_report(workspace.folder("a"))
    assert report is not None
    effect = report.effect("rl@6")
    assert effect is not None and effect.value is not None
    found = cards(steps, from_report(report))
    assert found["hints"]["value"] == f"+{effect.value:.2f}".replace("0.", ".")
    assert found["hints"]["source"] == "evaluation of rl@6" and found["solved"]["bars"][-1]["low"] is not None
    assert [share["text"] for share in found["groups"]["fractions"]] == ["50 %", "25 %", "25 %"]
    plain = cards(steps, None)
    assert plain["hints"] is None
    assert plain["solved"]["source"] == "training, mean of the last 6 steps"
    assert [pair["text"] for pair in plain["changes"]["pairs"]] == [".80", ".60", ".70", ".20"]
    assert not any(cards([], None).values())


# -- checkpoints of several runs -----------------------------------------------------------------------------------
CONFIG = {
    "environment": {"type": "g", "seed": 0},
    "evaluation": {"seed": 1, "split": "test", "samples_per_task": 1},
    "rollout": {"max_turns": 2},
}


def test_only_evaluations_on_the_same_tasks_with_the_same_seed_are_paired() -> None:
    assert incompatible_keys(CONFIG, {**CONFIG, "seed": 9}) == []
    assert incompatible_keys(CONFIG, {**CONFIG, "environment": {"type": "g", "seed": 1}}) == ["environment"]
    assert incompatible_keys(CONFIG, {**CONFIG, "evaluation": {"seed": 2, "split": "test", "samples_per_task": 1}}) == [
        "evaluation.seed"
    ]
    assert incompatible_keys(CONFIG, {**CONFIG, "evaluation": {**CONFIG["evaluation"], "max_turns": 5}}) == ["turns"]
    played = {("c", "hints"): {"t1": {1: 1}, "t2": {None: 1}}, ("c", "contentless"): {"t1": {None: 1}, "t2": {None: 1}}}
    better = {**played, ("c", "hints"): {"t1": {1: 1}, "t2": {2: 1}}}
    base = CheckpointOutcomes(1, "c", played, CONFIG, 2)
    other = CheckpointOutcomes(3, "c", played, {**CONFIG, "evaluation": {"seed": 2}}, 2)
    like, differs = paired_rows(
        [
            checkpoint_difference(CheckpointOutcomes(2, "c", better, CONFIG, 2), base),
            checkpoint_difference(other, base),
        ]
    )
    assert like["checkpoint"] == "2:c" and [q["quantity"] for q in like["quantities"]] == ["cum_acc", "hint_effect"]
    assert [q["cell"]["value"] for q in like["quantities"]] == [0.5, 0.5]
    assert differs["quantities"] == [] and "evaluation.seed" in differs["unlike"]


def test_checkpoints_that_are_compared_with_one_base_are_a_family() -> None:
    """Each solves 6 of 20 tasks more: 2 · ½⁶ = .031 alone, .062 for two."""
    solved = {f"t{i}": {1: 1} if i < 6 else {None: 1} for i in range(20)}
    unsolved = {f"t{i}": {None: 1} for i in range(20)}
    base = CheckpointOutcomes(1, "c", {("c", "hints"): unsolved}, CONFIG, 2)
    rows = [checkpoint_difference(CheckpointOutcomes(n, "c", {("c", "hints"): solved}, CONFIG, 2), base)
            for n in (2, 3)]  # fmt: skip
    (alone,), both = paired_rows(rows[:1]), paired_rows(rows)
    assert alone["quantities"][0]["finding"] == "higher"
    assert {row["quantities"][0]["finding"] for row in both} == {
        "95 % CI excludes 0, but not after Holm's correction (p = .06)"
    }


# -- overlays and seeds --------------------------------------------------------------------------------------------
def test_runs_are_overlaid_each_with_its_own_look_and_what_a_click_means() -> None:
    chart = overlay([member(1, 0, 0.1, 0.2), member(2, 1, 0.3)], "reward", "step", 0.0)
    assert chart is not None
    first, second = [trace for trace in chart.figure["data"] if trace["meta"] == "line"]
    assert (first["name"], second["name"]) == ("1 small", "2 small")
    assert first["line"]["color"] != second["line"]["color"]
    assert first["customdata"][1] == [1, "rl", 2, "rl step 2"]
    assert overlay([member(1, 0, 0.1)], "no such", "step", 0.0) is None


def test_seeds_of_one_configuration_become_their_mean_with_a_t_interval() -> None:
    held = [member(1, 0, 0.2, 0.4), member(2, 1, 0.4, 0.8), member(3, 0, 0.9, lr=2)]
    assert [[m.id for m in group] for group in seed_groups(held)] == [[1, 2], [3]]
    chart = overlay(held, "reward", "step", 0.0, merge=True)
    assert chart is not None
    merged, alone = [trace for trace in chart.figure["data"] if trace["meta"] == "line"]
    assert merged["y"] == pytest.approx([0.3, 0.6]) and merged["name"] == "small ×2" and alone["y"] == [0.9]
    named = overlay([replace(m, name=f"rl2f-seed-{m.id}") for m in held[:2]], "reward", "step", 0.0, merge=True)
    assert named is not None and "rl2f ×2" in [trace.get("name") for trace in named.figure["data"]]
    (band,) = [trace for trace in chart.figure["data"] if trace["meta"] == "band"]
    half = 12.7062 * 0.141421 / 2**0.5  # t(.975, 1) · s / √2
    assert (band["y"][-1], band["y"][0]) == pytest.approx((0.3 - half, 0.3 + half), rel=1e-4)


def test_the_same_seed_twice_is_no_further_seed() -> None:
    held = [member(1, 0, 0.2), member(2, 0, 0.4), member(3, 1, 0.4)]
    assert [[m.id for m in group] for group in seed_groups(held)] == [[1, 3], [2]]


# -- configurations ------------------------------------------------------------------------------------------------
def test_configurations_differ_by_flat_keys_and_stages_go_by_name() -> None:
    a = {
        "seed": 0,
        "model": {"name": "m"},
        "stages": [{"name": "rl", "steps": 5}],
        "controls": ["hints"],
        "alphabet": "",
    }
    b = {
        "seed": 1,
        "model": {"name": "m"},
        "stages": [{"name": "sft", "steps": 2}, {"name": "rl", "steps": 6}],
        "controls": [],
    }
    assert flatten(a)["stages.rl.steps"] == 5 and flatten({"d": [{"x": 1}]}) == {"d.0.x": 1}
    found = {row.key: row.values for row in config_differences([a, b])}
    assert found == {
        "seed": ["0", "1"],
        "stages.rl.steps": ["5", "6"],
        "controls": ['["hints"]', "[]"],
        "alphabet": ["''", MISSING],
        "stages.sft.name": [MISSING, "sft"],
        "stages.sft.steps": [MISSING, "2"],
    }
    assert config_differences([a, a]) == []


def test_the_quality_of_a_model_teacher_is_a_mean_over_its_hints() -> None:
    """30 hints of .5 and 10 of .9 true: (15 + 9) / 40 = .60; 400 + 200 tokens in 40 hints: 15; 50 + 30 s: 2."""
    tokens = "teacher/completion_tokens"
    steps = [{"teacher/hints": 30.0, "true_hint_rate": 0.5, tokens: 400.0, "time/waiting": 50.0},
             {"teacher/hints": 10.0, "true_hint_rate": 0.9, tokens: 200.0, "time/waiting": 30.0},
             {"reward": 1.0}]  # fmt: skip
    rows = [Metric(run_id=1, number=i, stage="rl2f", step=i, time=0.0, values=v) for i, v in enumerate(steps, 1)]
    shown = cards(rows, None)["teacher"]
    assert shown["source"] == "training, 40 hints"
    texts = {pair["name"]: pair["text"] for pair in shown["pairs"]}
    assert texts == {"true": ".60", "tokens": "15.00", "seconds": "2.00"}
    assert cards(rows[2:], None)["teacher"] is None
