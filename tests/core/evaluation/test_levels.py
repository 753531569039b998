"""Evaluation by level and on perturbed variants: memorization score, correct variants, whole runs."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli import app
from rl2f_core import registry
from rl2f_core.common.stats.intervals import wilson
from rl2f_core.config.loading import parse_config
from rl2f_core.environments.base import assign_split, distinct_tasks, wrap_answer
from rl2f_core.environments.capabilities import Levels, Perturbations
from rl2f_core.environments.puzzles.knights_knaves import logic as logic
from rl2f_core.environments.puzzles.knights_knaves.environment import KnightsKnaves
from rl2f_core.environments.puzzles.knights_knaves.perturbations import changed, reordered
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.levels.config import LevelsRun
from rl2f_core.evaluation.levels.report import (
    ALL_LEVELS,
    ORIGINAL,
    RESAMPLED,
    LevelInfo,
    LevelsReport,
    accuracy,
    build_levels,
    consistency,
    level_findings,
    level_tables,
    memorization,
    memorization_above_resample,
)
from rl2f_core.evaluation.levels.runner import evaluate_levels
from rl2f_core.evaluation.report import EvaluatedTasks
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.context import RunContext
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, LogEvent, MetricEvent, read_events
from rl2f_core.run.journal import Journal
from rl2f_core.run.kinds.levels import levels_config

KNOWN = registry.names("environment")


# -- the score -----------------------------------------------------------------------------------------------------
def by_task(*hits: int) -> dict[tuple[str, int], bool]:
    return {(f"t{i}", 0): bool(hit) for i, hit in enumerate(hits)}


def test_memorization_score_is_accuracy_times_one_minus_consistency() -> None:
    """Solved as they are: 4 of 5. Of those 1 is solved as a copy: CR = 1/4, LiMem = 4/5 · 3/4 = 3/5."""
    original, copies = by_task(1, 1, 1, 1, 0), by_task(1, 0, 0, 0, 1)
    assert accuracy(original) == wilson(4, 5) and accuracy(copies).value == 2 / 5
    assert consistency(original, copies) == wilson(1, 4)
    assert memorization(original, copies) == wilson(3, 5)
    assert memorization(original, original).value == 0 and consistency(original, original).value == 1
    assert consistency(by_task(0, 0), by_task(1, 1)).value is None  # nothing was solved that could be lost


def test_task_without_a_valid_variant_is_excluded() -> None:
    original, copies = by_task(1, 1, 0), {("t1", 0): False, ("t2", 0): True}
    assert memorization(original, copies) == wilson(1, 2) and consistency(original, copies) == wilson(0, 1)


def test_memorization_excludes_what_resampling_loses() -> None:
    """Lost under the copy: t0, t1; again: t1, t2. The difference is (2 − 2) / 4 = 0; without `again`'s losses 2/4."""
    original, copies, again = by_task(1, 1, 1, 1), by_task(0, 0, 1, 1), by_task(1, 0, 0, 1)
    assert memorization_above_resample(original, copies, again).value == 0
    assert memorization_above_resample(original, copies, original).value == 0.5


# -- the copies ----------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(("people", "depth"), [(2, 2), (2, 3), (3, 2), (5, 3), (8, 2)])
def test_every_variant_has_exactly_its_solution(people: int, depth: int) -> None:
    env = KnightsKnaves(KnightsKnaves.Config(people=people, depth=depth))
    for split in ("train", "test"):
        for index in range(4):
            task = env.task(split, index)
            copies = env.perturbations(task)
            assert copies == env.perturbations(task) and set(copies) <= set(env.perturbation_kinds)
            assert set(env.perturbation_kinds) - set(copies) <= {"statement_changed"}
            key, before = env.canonical(task), logic.solutions(logic.as_puzzle(task.public["statements"]))
            for name, copy in copies.items():
                puzzle = logic.as_puzzle(copy.public["statements"])
                (solution,) = logic.solutions(puzzle)
                assert solution == env._bits(copy, env.gold_answer(copy))
                assert env.verify(copy, wrap_answer(env.gold_answer(copy))).correct
                assert (copy.split, copy.level, copy.id) == (task.split, task.level, f"{task.id}/{name}")
                assert copy.public["text"] != task.public["text"]
                own = assign_split(env.canonical(copy))
                if name == "statement_changed":
                    assert own != "train" and env.canonical(copy) != key and [solution] != before
                    assert copy.public["people"] == task.public["people"] and env.gold_answer(copy) != env.gold_answer(
                        task
                    )
                    lines = zip(copy.public["text"].splitlines(), task.public["text"].splitlines(), strict=True)
                    assert sum(a != b for a, b in list(lines)[1:]) == 1
                else:
                    assert env.canonical(copy) == key and own == split


def test_each_variant_changes_what_its_name_says() -> None:
    env = KnightsKnaves(KnightsKnaves.Config(people=4))
    task = env.task("test", 3)
    copies = env.perturbations(task)
    people, statements = task.public["people"], task.public["statements"]
    renamed, turned, flipped = (copies[name] for name in ("renamed", "reordered", "roles_flipped"))
    assert not set(renamed.public["people"]) & set(people) and renamed.public["statements"] == statements
    assert turned.public["people"] != people and sorted(turned.public["people"]) == sorted(people)
    assert env.gold_answer(turned) == env.gold_answer(task)
    assert flipped.public["text"].startswith("A knave always tells the truth; a knight always lies.")
    exchanged = env.gold_answer(task).replace("knight", "?").replace("knave", "knight").replace("?", "knave")
    assert env.gold_answer(flipped) == exchanged
    wrong = env.verify(flipped, wrap_answer(env.gold_answer(task)))
    assert not wrong.correct and wrong.score == 0
    hint = env.hint(flipped, [wrong], random.Random(0))
    named = re.findall(r"what (\w+) says", hint)
    bits = env._bits(flipped, env.gold_answer(task))
    puzzle = logic.as_puzzle(flipped.public["statements"])
    assert named == [people[logic.first_contradicted(puzzle, bits)]]  # type: ignore[index]
    right = env.simulate_attempt(flipped, [], random.Random(0), follow_hint=False, correct=True)
    assert env.verify(flipped, right).correct


def test_reordering_a_puzzle_by_hand() -> None:
    """The last speaks first: 0 → 1, 1 → 2, 2 → 0."""
    puzzle = (("knave", 1), ("and", ("knight", 0), ("knave", 2)), ("not", ("knight", 0)))
    assert reordered(puzzle, [2, 0, 1]) == (
        ("not", ("knight", 1)), ("knave", 2), ("and", ("knight", 1), ("knave", 0))
    )  # fmt: skip


def test_no_variant_without_a_valid_puzzle() -> None:
    puzzle = (("knave", 1), ("and", ("knight", 0), ("knight", 1)))
    assert changed(puzzle, 2, random.Random(0), lambda made: False) is None
    found = changed(puzzle, 2, random.Random(0), lambda made: True)
    assert found is not None and logic.solutions(found[0]) == [found[1]] != logic.solutions(puzzle)


@pytest.mark.parametrize("name", KNOWN)
def test_environments_support_their_levels_and_variants(name: str) -> None:
    kind: Any = registry.get("environment", name)
    if not issubclass(kind, Levels):
        return
    assert kind.level_field in kind.Config.model_fields
    assert list(kind.level_values) == sorted(set(kind.level_values))
    for value in kind.level_values:
        made = kind(kind.Config(**{kind.level_field: value}))
        task = made.task("test", 0)
        for variant, copy in (made.perturbations(task) if isinstance(made, Perturbations) else {}).items():
            assert variant in kind.perturbation_kinds and copy.id != task.id and copy.split == task.split
            assert made.verify(copy, wrap_answer(made.gold_answer(copy))).correct and made.prompt(copy.public).strip()


# -- the run -------------------------------------------------------------------------------------------------------
def config(**changes: Any) -> LevelsRun:
    data = {"kind": "levels", "adapters": {"base": None, "b": None}, "environment": "knights_knaves", "values": [2, 3],
            "tasks": 10, "backend": "fake", "rollout": {"max_new_tokens": 300, "max_seq_len": 2000}}  # fmt: skip
    made = parse_config(data | changes)
    assert isinstance(made, LevelsRun)
    return made


SEEN = KnightsKnaves(KnightsKnaves.Config(people=2))
LEARNT = {task.public["text"]: SEEN.gold_answer(task) for task in distinct_tasks(SEEN, "test", 10)}


def by_heart(text: str, rng: random.Random) -> str:
    """Knows the texts of two people that it has seen, and nothing else."""
    said = next((answer for problem, answer in LEARNT.items() if problem in text), None)
    return wrap_answer(said) if said else "Let me check. I do not know."


def play(folder: Path, made: LevelsRun, stop: Any = lambda: False, script: Any = by_heart) -> tuple[RunDir, bool]:
    run_dir = RunDir.open(folder) if folder.exists() else RunDir.create(folder, made)
    journal = Journal(run_dir, JsonlSink(run_dir.events_path))
    journal.resume()
    ended = evaluate_levels(made, RunContext(journal, stop), FakeBackend(script=script))
    if ended:
        journal.commit({"done": True})
    return run_dir, ended


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    made = config(adapters={"base": None})
    return play(tmp_path_factory.mktemp("levels") / "run", made)[0]


@pytest.mark.slow
def test_memorizing_student_is_detected(played: RunDir) -> None:
    """Ten puzzles of two people known word for word: right as they are and again, lost in each copy that the answer
    does not survive; nothing is known of three people."""
    report = LevelsReport.model_validate_json((played.evaluation / "levels.json").read_text())
    two = {name: report.cell("base", "people=2", name) for name in (ORIGINAL, *report.variants)}
    assert report.variants == [RESAMPLED, "renamed", "reordered", "roles_flipped", "statement_changed"]
    assert all(cell is not None and cell.tasks == 10 for cell in two.values())
    assert two[ORIGINAL].accuracy == wilson(10, 10) and two[RESAMPLED].memorization == wilson(0, 10)
    for name in ("renamed", "reordered", "roles_flipped", "statement_changed"):
        assert two[name].accuracy.value == 0 and two[name].memorization == wilson(10, 10)
        assert two[name].memorization_above_resample.value == 1 and two[name].memorization_above_resample.above(0)
    whole = report.cell("base", ALL_LEVELS)
    assert whole.accuracy.value == 0.5 and report.cell("base", "people=3").accuracy.value == 0
    lines = level_findings(report)
    assert any(line.startswith("LiMem of base under renamed") and "memorized beyond chance" in line for line in lines)
    assert any(line.startswith("base at people=3") and "always answering" in line for line in lines)
    assert not any(line.startswith("base at people=2") for line in lines)
    _, header, rows = level_tables(report)[0]
    assert [row[1] for row in rows] == ["people=2", "people=3", ALL_LEVELS] and len(header) == len(rows[0])
    assert [row[2] for row in rows][2] == "–" and rows[0][2].startswith(".2")
    markdown = (played.evaluation / "report.md").read_text()
    assert markdown == report.to_markdown() and "LiMem, renamed" in markdown and "reflection words" in markdown
    assert (played.evaluation / "accuracy_by_level.png").read_bytes().startswith(b"\x89PNG")


def test_a_level_with_fewer_distinct_problems_than_requested_uses_all_and_says_so() -> None:
    """Defect 1: 13 of 150 puzzles of two people were distinct."""
    infos = [LevelInfo(name="people=2", value=2, tasks=13), LevelInfo(name="people=3", value=3, tasks=150)]
    report = build_levels({}, infos, environment="e", field="people", evaluated=EvaluatedTasks(150, 1), turns=1)
    assert [line for line in level_findings(report) if "distinct" in line] == [
        "people=2: Only 13 distinct problems of the requested 150 were found in the test split; all of them are "
        "evaluated. Several samples each: samples."
    ]


def test_dialogues_metrics_and_warnings_of_levels_and_variants_are_events(played: RunDir) -> None:
    events = list(read_events(played.events_path, strict=True))
    dialogues = [e for e in events if isinstance(e, DialogueEvent)]
    assert len({e.id for e in dialogues}) == len(dialogues) == 2 * 6 * 10
    assert {e.condition for e in dialogues} >= {"people=2", "people=2, again", "people=3, statement_changed"}
    assert len({(e.task.id, e.condition) for e in dialogues}) == len(dialogues)
    seeds = {
        again: {e.dialogue.seed for e in dialogues if e.dialogue.group == "knights_knaves/test/0/people=2"
                and str(e.condition).endswith("again") == again}
        for again in (True, False)
    }  # fmt: skip
    assert len(seeds[True]) == len(seeds[False]) == 1 and seeds[True] != seeds[False]
    stages = {e.stage for e in events if isinstance(e, MetricEvent)}
    assert len(stages) == 12 and "evaluation:base:people=2, renamed" in stages
    assert [e.level for e in events if isinstance(e, LogEvent)] == ["warning", "info"]


@pytest.mark.usefixtures("undrawn")
def test_resumed_evaluation_gives_the_same_report(tmp_path: Path) -> None:
    made = config(adapters={"base": None}, perturbations=["renamed"], tasks=3)
    answers = iter([False, True])
    run_dir, ended = play(tmp_path / "a", made, lambda: next(answers))
    assert not ended and not (run_dir.evaluation / "levels.json").exists()
    whole, done = play(tmp_path / "b", made)
    assert done and play(tmp_path / "a", made)[1]
    assert (run_dir.evaluation / "levels.json").read_text() == (whole.evaluation / "levels.json").read_text()


@pytest.mark.usefixtures("undrawn")
def test_later_turns_are_generated_only_on_original_tasks(tmp_path: Path) -> None:
    made = config(adapters={"base": None}, turns=3, values=[3], tasks=4, perturbations=["renamed"])
    run_dir, _ = play(tmp_path / "a", made)
    events = [e for e in read_events(run_dir.events_path) if isinstance(e, DialogueEvent)]
    assert {(e.condition, len(e.dialogue.turns)) for e in events} == {
        ("people=3", 3), ("people=3, again", 1), ("people=3, renamed", 1)
    }  # fmt: skip
    report = LevelsReport.model_validate_json((run_dir.evaluation / "levels.json").read_text())
    assert report.cell("base", "people=3").solved.value == 0 and "within 3 turns" in report.to_markdown()


def test_any_integer_field_of_any_environment_can_be_swept() -> None:
    assert list(config(environment="guess_number", field="size", values=[4, 8]).levels()) == ["size=4", "size=8"]
    assert list(config(values=[]).levels()) == [f"people={n}" for n in range(2, 9)]
    assert config(environment="guess_number", field="size", values=[4]).variants() == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"values": [2, 9]}, "people=9 is not a level of knights_knaves"),
        ({"values": [2, 2]}, "given twice"),
        ({"field": "persons", "values": [2]}, "known: type, people"),
        ({"field": "depth", "values": []}, "needs values"),
        ({"perturbations": ["shouted"]}, "known: renamed, reordered, roles_flipped, statement_changed"),
    ],
)
def test_unknown_levels_and_variants_are_rejected_with_the_known_ones(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        config(**changes)


@pytest.mark.usefixtures("undrawn")
def test_command_evaluates_a_base_model_by_level(tmp_path: Path) -> None:
    fake = 'backend={type: fake, replies: ["<answer>x</answer>"]}'
    done = CliRunner().invoke(
        app, ["levels", "--environment", "knights_knaves", "--tasks", "2", "--level", "2", "--level", "8",
              "--perturbation",
              "renamed", "--set", fake, "--out", str(tmp_path / "run")]
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "run" / "evaluation" / "levels.json").read_text())
    assert [info["value"] for info in found["levels"]] == [2, 8] and found["tasks"] == 2
    assert {cell["variant"] for cell in found["cells"]} == {ORIGINAL, RESAMPLED, "renamed"}
    refused = CliRunner().invoke(app, ["levels"])
    assert refused.exit_code == 2
    with pytest.raises(ConfigError, match="Nothing to evaluate"):
        levels_config([])
