"""Reported faults of evaluation numbers: pooled rates, seeds, failed detectors, references, small samples, texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from event_data import CONFIG, config, dialogue, stored_run, turn
from report_data import TURNS, built
from rescore_data import BOX, LEAKS, run_folder
from typer.testing import CliRunner

from app.cli import app
from app.experiment import Experiment
from app.plots.evaluation import from_outcomes, from_report, table
from app.plots.metric_info import metric_info
from app.plots.summary_cards import leak_rates
from jobs.db.engine import Database
from jobs.db.queries import outcomes, run_values
from jobs.db.queries.run_values import group_key
from jobs.labels.detector_report import planted_rows
from jobs.labels.hint_counts import DetectorVerdict, HintGroup
from jobs.labels.planted_hints import PlantedHint
from jobs.workspace import Workspace
from rl2f_core.common.stats.intervals import Interval, wilson_clustered
from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.metrics.dialogues import compute_metrics
from rl2f_core.environments.mixture import Mixture
from rl2f_core.evaluation.across_seeds import compare_arms, merge_seeds
from rl2f_core.evaluation.chart_data import effect_chart
from rl2f_core.evaluation.conclusions import BELIEVED, HELPED, answers
from rl2f_core.evaluation.evaluate import training_notes, training_rows
from rl2f_core.evaluation.formatting import interval_beside
from rl2f_core.evaluation.levels.report import LevelInfo, build_levels, level_warnings
from rl2f_core.evaluation.report import EvaluatedTasks, EvaluationReport, build_report, findings
from rl2f_core.evaluation.rescoring.rescore import Rescore
from rl2f_core.evaluation.study.report import find
from rl2f_core.evaluation.study.spec import Hypothesis
from rl2f_core.leaks.parsing import parse_detectors
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, Event, JsonlSink, MetricEvent
from rl2f_core.types import ConstantBaseline, Dialogue, Hint, LeakReport, RewardTerm, StopReason, Task, Turn, Verdict


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
    assert find(hypothesis, found, planned=2) == "not shown"


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


# -- leaks -----------------------------------------------------------------------------------------------------------
def checked(leaked: bool, planted: str | None = None, error: str | None = None) -> Hint:
    """A hint that a detector flagged, found clean, or failed to check."""
    report = LeakReport(leaked=leaked, detector="exact" if leaked else None, error=error)
    return Hint(text="It is 8.", teacher="leaky" if planted else "scripted", planted=planted, leak=report)


FAILED_CHECK = checked(False, error="endpoint down")


def test_hints_whose_detector_failed_are_not_checked() -> None:
    """18 failed, 1 leak and 1 clean: 1 of 2."""
    hints = [FAILED_CHECK] * 18 + [checked(True), checked(False)]
    metrics = compute_metrics([answered(i, "xR", hint=hint) for i, hint in enumerate(hints)], TURNS)
    assert (metrics["leak_rate"].value, metrics["leak_rate"].n, metrics["prevented_leak_rate"].n) == (0.5, 2, 2)
    planted = checked(False, "verbatim", "endpoint down")
    assert compute_metrics([answered(0, "xR", hint=planted)], TURNS)["planted_recall"].value is None


def test_a_rescore_compares_with_hints_that_the_run_checked(tmp_path: Path) -> None:
    hint = FAILED_CHECK.model_copy(update={"text": LEAKS, "feedback": LEAKS})
    run = run_folder(tmp_path / "run", [dialogue(turns=(turn(0, hint=hint), turn(1, right=True)), task=BOX)])
    work = Rescore(RunDir.open(run).events_path, RunDir.open(run).config(), parse_detectors("exact"))
    assert list(work.run()) and (work.tally.hints, work.tally.was_checked, work.tally.newly_flagged) == (1, 0, 0)


def test_a_turn_whose_detector_failed_has_no_leak_in_data_frames(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run", config())
    JsonlSink(run.events_path).emit(evaluated_events({"hints": [answered(0, "xR", hint=FAILED_CHECK)]}))
    assert list(Experiment(run.path).turns().leaked) == [None, None]


def test_curves_without_a_read_leak_leave_out_planted_leaks_that_no_detector_flagged(
    db: Database, workspace: Workspace
) -> None:
    """2 flagged and 6 unflagged planted leaks are read and solved, 4 clean dialogues are not: reward 0, not .6."""
    hints = [checked(True)] * 2 + [checked(False, "verbatim")] * 6 + [checked(False)] * 4
    played = [answered(0, "xR" if i < 8 else "xxx", i, hint) for i, hint in enumerate(hints)]
    events = [dialogue(1, 0, i, [t.model_copy(update={"rewards": (RewardTerm(name="correct", score=t.verdict.score),)})
                                 for t in d.turns]) for i, d in enumerate(played)]  # fmt: skip
    run = stored_run(db, workspace, events)
    metrics = compute_metrics([event.dialogue for event in events], TURNS)
    assert outcomes.has_leaks(db, run.id)
    assert outcomes.without_leaks(db, run.id, "rl2f", 1, 1, TURNS) == {1: (metrics["clean_reward"].value, 0.0)}
    assert metrics["clean_reward"].value == 0.0


def test_leaks_of_controls_draw_no_curve_of_training(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, evaluated_events({"leaking": [answered(0, "xR", hint=checked(True))]}))
    assert not outcomes.has_leaks(db, run.id)


@pytest.mark.parametrize("failed", [False, True])
def test_the_leaks_of_a_card_are_those_of_the_report(failed: bool, db: Database, workspace: Workspace) -> None:
    """4 problems × 10 dialogues, of which 2 problems leak: .50 [.07, .93]; or those failed, and .00 of 20."""
    more = {"stop_reason": StopReason.FAILED} if failed else {}
    leaking = [answered(i, "xR", j, checked(True), **more) for i in (0, 1) for j in range(10)]
    dialogues = [*leaking, *(answered(i, "xR", j, checked(False)) for i in (2, 3) for j in range(10))]
    run = stored_run(db, workspace, evaluated_events({"hints": dialogues}))
    card = leak_rates(outcomes.leaks_by_turn(db, run.id, "evaluation", 0)[1], "the evaluation")
    report = compute_metrics(dialogues, TURNS)["leak_rate"]
    assert card is not None
    ((value, low, high),) = [(bar["value"], bar["low"], bar["high"]) for bar in card["bars"]]
    assert (value, low, high) == (report.value, report.low, report.high)
    assert card["source"] == f"{20 if failed else 40} checked hints in the evaluation"
    assert failed or (round(low, 2), round(high, 2)) == (0.07, 0.93)


def test_the_recall_on_planted_leaks_treats_a_task_as_a_cluster() -> None:
    group = HintGroup(1, "guess_number", "leaky", "rl2f", 1, "", "", False)
    missed, caught = DetectorVerdict(True, False, ""), DetectorVerdict(True, True, "exact")
    counts = {PlantedHint(group, task, "verbatim", caught if task in "ab" else missed): 10 for task in "abcd"}
    (overall, *_) = planted_rows(counts)
    assert (overall.hints, overall.flagged) == (40, 20)
    assert overall.recall == wilson_clustered([10, 10, 0, 0], [10] * 4)


# -- references ------------------------------------------------------------------------------------------------------
def test_references_of_a_mixture_have_the_weights_of_the_evaluated_tasks() -> None:
    """The weights are equal, but of 16 evaluated tasks 2 are of the part with two numbers and 14 of that with sixteen.

    In two turns, the optimal policy without hints solves 2/2 and 2/16 of them; constant answers solve 1/2 and 1/16.
    """
    sizes = {"small": 2, "large": 16}
    parts = [{"name": n, "environment": {"type": "guess_number", "size": size, "low": 1}} for n, size in sizes.items()]
    environment = Mixture(Mixture.Config.model_validate({"environments": parts}))
    counts, weights = {"small": 2, "large": 14}, {"small": 2 / 16, "large": 14 / 16}
    ids = [f"{name}/test/{i}" for name in sizes for i in range(counts[name])]
    dialogues = [answered(0, "xx", task_id=task_id) for task_id in ids]
    report = build_report(environment, {"base": {"hints": dialogues}}, 2, EvaluatedTasks(tasks=16, samples=1))
    assert report.references[1].without_hints == pytest.approx(weights["small"] + weights["large"] * 2 / 16)
    assert report.constant_baseline is not None
    assert report.constant_baseline.score == pytest.approx(weights["small"] / 2 + weights["large"] / 16)
    assert environment.for_tasks(["imported"]) is environment and environment.weights["small"] == 0.5


def test_a_part_of_a_mixture_without_an_evaluated_task_has_no_weight() -> None:
    parts = [{"environment": {"type": "guess_number", "size": 4, "low": 1}}, {"environment": "knights_knaves"}]
    environment = Mixture(Mixture.Config.model_validate({"environments": parts}))
    assert environment.bounds(1) is None and environment.for_tasks(["guess_number/test/0"]).bounds(1) is not None


# -- what effects are relative to ------------------------------------------------------------------------------------
@pytest.fixture
def reflecting() -> EvaluationReport:
    """Hints solve 20 of 20 problems, without reflections 10: −.50 against hints."""
    hints = [answered(i, "xR") for i in range(20)]
    dropped = [answered(i, "xR" if i < 10 else "xxx") for i in range(20)]
    contentless = [answered(i, "xxx") for i in range(20)]
    by_condition = {"hints": hints, "contentless": contentless, "reflection_dropped": dropped}
    return built({"rl@2": by_condition}, 0, EvaluatedTasks(tasks=20, samples=1))


def test_effects_of_reflections_are_shown_as_relative_to_hints(reflecting: EvaluationReport) -> None:
    texts = {row["control"]: row["cells"]["effect"] for row in table(from_report(reflecting))["rows"]}
    assert texts["reflection_dropped"]["text"].startswith("−.50 [")
    assert texts["reflection_dropped"]["text"].endswith("] (against hints)")
    assert texts["hints"]["text"].endswith("]") and "hints" in metric_info("effect").help
    chart = effect_chart(reflecting)
    (plot,) = chart.plots
    assert chart.title == "Difference to contentless feedback or to hints, by condition"
    assert [line.name for line in plot.lines] == ["hints", "reflection_dropped (against hints)"]
    merged = merge_seeds({"0": reflecting}).to_markdown()
    assert "| rl@2 | reflection_dropped | effect (against hints) | −.50 |" in merged
    assert "The effect of rl@2 under reflection_dropped (against hints): −.50 [" in merged


# -- small samples ---------------------------------------------------------------------------------------------------
def few(seed: int = 0, problems: int = 5) -> EvaluationReport:
    """A report in which all problems are solved with hints and none without."""
    by_condition = {c: [answered(i, a) for i in range(problems)] for c, a in (("hints", "xR"), ("contentless", "xxx"))}
    return built({"rl@2": by_condition}, seed, EvaluatedTasks(tasks=problems, samples=1, seed=seed))


def test_few_problems_are_compared_with_no_constant_answer() -> None:
    summary = merge_seeds({str(seed): few(seed) for seed in range(3)})
    baselines = [line for line in summary.findings() if line.startswith("Solve rate")]
    assert len(baselines) == 2 and all("too few to tell" in line and "above it" not in line for line in baselines)
    assert {row.mean.n for row in summary.rows} == {5}
    marked = [row["cells"]["cum_acc/1"] for row in table(from_report(few(problems=5)))["rows"]]
    assert all("constant_baseline" not in cell for cell in marked)
    assert "constant_baseline" in table(from_report(few(problems=10)))["rows"][0]["cells"]["cum_acc/1"]


def test_few_tasks_of_a_level_are_compared_with_no_constant_answer() -> None:
    def warnings(tasks: int) -> list[str]:
        dialogues = [answered(i, "x") for i in range(tasks)]
        info = LevelInfo(name="people=2", value=2, tasks=tasks, constant_baseline=ConstantBaseline("A", 0.9))
        levels = {"base": {"people=2": {"as it is": dialogues}}}
        size = EvaluatedTasks(tasks=tasks, samples=1)
        return level_warnings(build_levels(levels, [info], environment="e", field="people", evaluated=size, turns=1))

    assert warnings(3) == [] and len(warnings(10)) == 1


def test_a_conclusion_from_few_problems_does_not_mention_the_constant_answer() -> None:
    by_condition = {c: [answered(i, "xxx") for i in range(5)] for c in ("hints", "contentless")}
    believed = answers(built({"rl@2": by_condition}, 0, EvaluatedTasks(tasks=5, samples=1)))[BELIEVED]
    assert "5 problems are too few to tell" in believed and "always answering" not in believed


# -- stages and texts ------------------------------------------------------------------------------------------------
def test_a_stage_whose_name_begins_with_evaluation_is_in_the_reports(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run", config())
    stages = [("evaluation-rl", 1), ("evaluation:base:hints", 0)]
    events = [MetricEvent(id=f"metric:{s}:{n}", stage=s, step=n, values={"tokens/sampled": 10.0}) for s, n in stages]
    JsonlSink(run.events_path).emit(events)
    assert training_rows(run) == {"evaluation-rl": [{"step": 1, "tokens/sampled": 10.0}]}
    assert training_notes(run) == ["Stage evaluation-rl: 10 sampled student tokens in 1 steps."]


def test_one_problem_is_the_reason_for_a_missing_interval() -> None:
    text = "\n".join(merge_seeds({"0": few(problems=1)}).findings())
    assert "+1.00 (no interval) over 1 seed, no interval, 1 problem;" in text and "evaluate again" not in text


def test_a_failed_condition_is_not_called_missing() -> None:
    failed = [answered(i, "x", stop_reason=StopReason.FAILED) for i in range(12)]
    by_condition = {"hints": [answered(i, "xR") for i in range(12)], "contentless": failed}
    report = built({"rl@2": by_condition}, 0, EvaluatedTasks(tasks=12, samples=1))
    helped = answers(report)[HELPED]
    assert "missing" not in helped and "that did not fail" in helped
    assert "The hint effect of rl@2 is –: no problem in common." in findings(report)


def test_coverage_belongs_to_an_interval_and_the_correction_to_a_finding() -> None:
    by_checkpoint = {c: {"hints": [answered(i, "xR") for i in range(20)],
                         "contentless": [answered(i, "xxx") for i in range(20)]} for c in ("a@1", "rl@2")}  # fmt: skip
    believed = answers(built(by_checkpoint, 0, EvaluatedTasks(tasks=20, samples=1)))[BELIEVED]
    assert "each interval has 95 % coverage on its own, and the finding is corrected by Holm's method" in believed


@pytest.mark.parametrize(
    ("threshold", "low", "shown"),
    [(0.004, 0.01, (".02 [.01, .03]", ".004")), (0.004, 0.0042, (".0171 [.0042, .0300]", ".0040")),
     (0.0, 0.01, (".02 [.01, .03]", ".00")), (0.05, 0.01, (".02 [.01, .03]", ".05"))],
)  # fmt: skip
def test_a_small_threshold_is_not_shown_as_zero(threshold: float, low: float, shown: tuple[str, str]) -> None:
    assert interval_beside(Interval(value=(low + 0.03) / 2, low=low, high=0.03, n=20), threshold) == shown


def test_a_small_constant_baseline_is_not_shown_as_zero() -> None:
    report = few(problems=12).model_copy(update={"constant_baseline": ConstantBaseline("A", 0.0014)})
    text = report.to_markdown()
    assert "solves .001 at one attempt" in text and "| best constant answer | any | .001 |" in text
