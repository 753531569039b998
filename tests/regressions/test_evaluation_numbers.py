"""Reported faults of evaluation numbers: pooled rates, seeds, failed detectors, references, small samples, texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from event_data import CONFIG, config, stored_run
from report_data import TURNS, built
from typer.testing import CliRunner

from app.cli import app
from app.plots.evaluation import from_outcomes
from jobs.db.engine import Database
from jobs.db.queries import outcomes, run_values
from jobs.db.queries.run_values import group_key
from jobs.workspace import Workspace
from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.metrics.dialogues import compute_metrics
from rl2f_core.evaluation.across_seeds import compare_arms, merge_seeds
from rl2f_core.evaluation.report import EvaluatedTasks
from rl2f_core.evaluation.study.report import find
from rl2f_core.evaluation.study.spec import Hypothesis
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, Event, MetricEvent
from rl2f_core.types import Dialogue, Hint, StopReason, Task, Turn, Verdict


def answered(
    task: int, answers: str, index: int = 0, hint: Hint = Hint(text="No.", teacher="scripted"), **more: Any
) -> Dialogue:
    """A dialogue with one letter per attempt; R is right."""
    turns = tuple(
        Turn(index=k, attempt=letter, token_ids=(1,), hint=hint if k < len(answers) - 1 else None,
             verdict=Verdict(correct=letter == "R", score=float(letter == "R"), parsed=letter, well_formed=True))
        for k, letter in enumerate(answers)
    )  # fmt: skip
    stop = StopReason.SOLVED if answers.endswith("R") else StopReason.EXHAUSTED
    names = {"id": f"t{task}/{index}", "task_id": f"t{task}", "group": f"t{task}", "index": index}
    return Dialogue(**{**names, "turns": turns, "stop_reason": stop, **more})


def evaluated_events(dialogues: Mapping[str, Sequence[Dialogue]]) -> list[Event]:
    """The dialogues of checkpoint rl@2 by condition, and their metrics."""
    task = {"environment": "guess_number", "split": "test", "public": {"text": "?"}, "privileged": {"answer": 8}}
    events: list[Event] = []
    for condition, group in dialogues.items():
        for d in group:
            event = DialogueEvent.of("evaluation", "evaluation", 0, Task(id=d.task_id, level="", **task), d,
                                     checkpoint="rl@2", condition=condition)  # fmt: skip
            events.append(event)
        stage, values = f"evaluation:rl@2:{condition}", compute_metrics(group, TURNS).flat()
        events.append(MetricEvent(id=f"metric:{stage}", stage=stage, step=0, values=values))
    return events


# -- pooled rates ----------------------------------------------------------------------------------------------------
def test_a_study_compares_the_rates_that_reports_contain() -> None:
    """One arm changes 30 of 50 revisions, the other 44 of 62: .6 − .7097. The mean over problems would be +.20."""
    first = [answered(i, "xR" if i < 30 else "xxx") for i in range(40)]
    second = [answered(i, "xyz" if 8 <= i < 30 else "xx") for i in range(40)]
    size = [EvaluatedTasks(tasks=40, samples=1, seed=seed) for seed in (0, 1)]
    arms = [{str(s): built({"rl@2": {"hints": arm}}, s, size[s]) for s in (0, 1)} for arm in (first, second)]
    found = compare_arms(arms, ("rl@2", "rl@2"), "plasticity")
    assert found.is_crossed and found.values == pytest.approx((30 / 50 - 44 / 62,) * 2)
    assert found.difference.value == pytest.approx(30 / 50 - 44 / 62) and found.difference.n == 40
    hypothesis = Hypothesis(name="x", quantity="plasticity", compare=("a", "b"), smallest_effect=0.01)
    assert find(hypothesis, found) == "not shown"


def test_differences_by_seed_are_paired_as_their_mean_is() -> None:
    """The dialogues of problems 0 … 9 failed in the first arm: it solves none of the common 10, the second arm 5."""
    failed = [answered(i, "x", stop_reason=StopReason.FAILED) for i in range(10)]
    first = [*failed, *(answered(i, "xxx") for i in range(10, 20))]
    second = [answered(i, "xR" if i < 15 else "xxx") for i in range(20)]
    size = EvaluatedTasks(tasks=20, samples=1)
    arms = [{"0": built({"rl@2": {"hints": arm}}, 0, size)} for arm in (first, second)]
    found = compare_arms(arms, ("rl@2", "rl@2"))
    assert found.values == (-0.5,) and (found.difference.value, found.difference.n) == (-0.5, 10)


# -- seeds -----------------------------------------------------------------------------------------------------------
def evaluation_of(folder: Path, seed: int, checkpoint: str = "rl2f@3", name: str = "eval small") -> dict[str, Any]:
    """The configuration of `rl2f eval` for a training run with this seed, which need not exist."""
    shared = {key: value for key, value in CONFIG.items() if key != "stages"}
    adapters = {"base": None, checkpoint: str(folder / "checkpoints" / checkpoint)}
    written = parse_config({**shared, "kind": "eval", "seed": seed, "name": name, "adapters": adapters})
    return written.model_dump(mode="json")


def test_evaluations_of_the_seeds_of_a_training_run_are_one_configuration(tmp_path: Path) -> None:
    other = [{**CONFIG["stages"][0], "steps": 1}, CONFIG["stages"][1]]  # type: ignore[index, dict-item]
    for seed, changes in enumerate(({}, {}, {"stages": other})):
        RunDir.create(tmp_path / f"t{seed}", config(seed=seed, **changes))
    first, second, third = (group_key(evaluation_of(tmp_path / f"t{seed}", seed)) for seed in range(3))
    assert first == second != third
    assert first != group_key(evaluation_of(tmp_path / "t0", 0, "rl2f@2"))


def test_evaluations_of_deleted_training_runs_are_grouped_by_their_name_without_the_seed() -> None:
    names = ("eval small-seed-0", "eval small-seed-1", "eval other-seed-1")
    first, second, third = (
        group_key(evaluation_of(Path(f"/missing/t{i}"), i, name=name)) for i, name in enumerate(names)
    )
    assert first == second != third


def test_forks_of_the_seeds_of_a_training_run_are_one_configuration(tmp_path: Path) -> None:
    for seed in (0, 1):
        RunDir.create(tmp_path / f"t{seed}", config(seed=seed))
    keys = [
        group_key({"source": str(tmp_path / f"t{s}"), "checkpoints": {"a": f"{tmp_path}/t{s}/checkpoints/a"}})
        for s in (0, 1)
    ]
    assert keys[0] == keys[1]


def test_a_report_merges_the_evaluations_of_several_seeds(tmp_path: Path) -> None:
    for seed, count in ((0, 20), (1, 10)):
        RunDir.create(tmp_path / f"t{seed}", config(seed=seed))
        run = RunDir.create(tmp_path / f"e{seed}", parse_config(evaluation_of(tmp_path / f"t{seed}", seed)))
        hints = [answered(i, "xR" if i < count else "xxx") for i in range(20)]
        dialogues = {"rl2f@3": {"hints": hints, "contentless": [answered(i, "xxx") for i in range(20)]}}
        run.evaluation.mkdir(exist_ok=True)
        size = EvaluatedTasks(tasks=20, samples=1, seed=seed)
        (run.evaluation / "report.json").write_text(built(dialogues, seed, size).to_json())
    done = CliRunner().invoke(app, ["report", str(tmp_path / "e0"), str(tmp_path / "e1")])
    assert "| rl2f@3 | hints | hint_effect | +1.00 | +.50 | +.75 [" in done.output


def test_seeds_without_a_value_are_not_counted_among_those_above_zero() -> None:
    hints = {"hints": [answered(i, "xR") for i in range(20)], "contentless": [answered(i, "xxx") for i in range(20)]}
    size = [EvaluatedTasks(tasks=20, samples=1, seed=seed) for seed in (0, 1)]
    summary = merge_seeds({"0": built({"rl@2": hints}, 0, size[0]), "1": built({"other": hints}, 1, size[1])})
    assert "over 1 seed, above 0; 1 of 1 seeds are above 0 on their own." in summary.to_markdown()
    assert {row.above_text for row in summary.rows if row.quantity == "hint_effect"} == {"1 of 1"}


# -- numbers of the database -----------------------------------------------------------------------------------------
def test_the_hint_effect_of_lists_is_that_of_the_report(db: Database, workspace: Workspace) -> None:
    """10 of 20 dialogues under hints failed, those that contentless feedback solves: +1 over the other 10 problems."""
    failed = [answered(i, "x", stop_reason=StopReason.FAILED) for i in range(10)]
    hints = [*failed, *(answered(i, "xR") for i in range(10, 20))]
    contentless = [answered(i, "xR" if i < 10 else "xxx") for i in range(20)]
    run = stored_run(db, workspace, evaluated_events({"hints": hints, "contentless": contentless}))
    assert run_values.of_runs(db, [run.id], ["hint_effect"]) == {run.id: {"hint_effect": 1.0}}


@pytest.mark.parametrize(("answers", "rates"), [("RRR", [1, 1, 1]), ("RxR", [1, 0, 1]), ("xRx", [0, 1, 0])])
def test_solve_rates_without_an_oracle_are_those_of_the_report(
    answers: str, rates: list[float], db: Database, workspace: Workspace
) -> None:
    dialogues = [answered(i, answers) for i in range(4)]
    run = stored_run(db, workspace, evaluated_events({"no_oracle": dialogues}))
    cells = from_outcomes(outcomes.evaluation(db, run.id), TURNS).cells["rl@2", "no_oracle"]
    metrics = compute_metrics(dialogues, TURNS)
    assert [cells[f"cum_acc/{t}"].value for t in (1, 2, 3)] == rates
    assert all(cells[f"cum_acc/{t}"] == metrics[f"cum_acc/{t}"] for t in (1, 2, 3))
