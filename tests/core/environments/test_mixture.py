"""Environment `mixture`: each task is spoken of by its own part alone, in training, controls, leaks and report."""

from __future__ import annotations

import inspect
import json
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.config.curriculum import tag_level
from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.dialogue.dataset_store import read_rows
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.teachers.shuffled import RecordedHints
from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.environments.capabilities import (
    Baselines,
    Demonstrator,
    LeakVocabulary,
    MisleadingHints,
    Perturbations,
    perturbation_names,
    without_worked_solution,
)
from rl2f_core.environments.mixture import SYSTEM, Mixture
from rl2f_core.environments.puzzles.numbers.arithmetic import Arithmetic
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.evaluation.evaluate import evaluate_run, write_report
from rl2f_core.evaluation.report import EvaluationReport
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.learning.training.collector import Collector
from rl2f_core.learning.training.curriculum import tracker_for_stage
from rl2f_core.learning.training.step_metrics import constant_baseline, part_metrics
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.context import RunContext
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.journal import Journal
from rl2f_core.types import Dialogue, Hint, StopReason, Task, Turn

PARTS: list[dict[str, Any]] = [
    {"environment": {"type": "guess_number", "size": 8}, "weight": 3},
    {"environment": {"type": "knights_knaves", "depth": 3}, "weight": 1, "name": "kk2"},
    {"environment": {"type": "knights_knaves", "people": 3}, "weight": 1, "name": "kk3"},
]


PLAIN = registry.get("environment", "guess_number").Config()  # type: ignore[attr-defined]


def mixture(*parts: dict[str, Any]) -> Mixture:
    return Mixture(Mixture.Config.model_validate({"environments": parts or PARTS}))


def first(held: Mixture, label: str, split: Any = "train") -> Task:
    return next(t for i in range(100) if held.sub_environment_of(t := held.task(split, i)) == label)


def test_parts_come_in_their_shares_in_every_stretch_of_the_stream() -> None:
    held = mixture()
    assert held.weights == pytest.approx({"guess_number": 0.6, "kk2": 0.2, "kk3": 0.2})
    # a run's own part of the stream may begin anywhere
    for start in (0, 17, 5 * 1_000_003, 2_000_000_000 * 1_000_003):
        seen = Counter(held.label_at(start + i) for i in range(40))
        assert all(abs(seen[label] - 40 * share) <= 2 for label, share in held.weights.items()), (start, seen)
    tasks = [held.task("test", i) for i in range(30)]
    assert len({t.id for t in tasks}) == 30
    assert {(t.environment, t.id.partition("/")[0]) for t in tasks} == {
        ("guess_number", "guess_number"), ("knights_knaves", "kk2"), ("knights_knaves", "kk3")
    }  # fmt: skip


def test_every_question_about_a_task_goes_to_its_part() -> None:
    """What an environment says of a task or of a public half, the mixture must hand on."""
    parts = (Environment, MisleadingHints, Demonstrator, Baselines, LeakVocabulary, Perturbations)
    asked = {
        name
        for part in parts
        for name, method in inspect.getmembers(part, inspect.isfunction)
        for of in inspect.signature(method).parameters.values()
        if of.name == "public" or "Task" in str(of.annotation)
    }
    assert {"perturbations", "worked_solution", "prefetch_verdicts", "attempt_contains", "prompt"} <= asked and len(
        asked
    ) >= 18
    kind = type(mixture())
    assert all(issubclass(kind, part) for part in parts)
    own = {name for base in kind.__mro__ if base.__module__ == Mixture.__module__ for name in vars(base)}
    assert asked - own == {"prompt_messages"}  # made from the system message and `prompt`


def test_a_mixture_says_what_its_parts_have_to_say() -> None:
    held = mixture({"environment": {"type": "math"}}, {"environment": "secret_code"})
    (said,) = [
        text for name, part in held.sub_environments.items() if name == "math" and (text := part.describe_data())
    ]
    assert "for training" in said and held.describe_data() == f"math: {said}"


def test_a_task_is_worded_judged_and_hinted_on_as_in_its_own_environment() -> None:
    held = mixture()
    for label, part in held.sub_environments.items():
        task = first(held, label)
        own = task.model_copy(update={"public": {k: v for k, v in task.public.items() if k != "mixture"}})
        assert own.model_copy(update={"id": "x"}) == part.task("train", int(task.id.rpartition("/")[2])).model_copy(
            update={"id": "x"}
        )
        assert held.prompt(task.public) == f"{part.system_prompt()}\n\n{part.prompt(own.public)}"
        gold = held.gold_answer(task)
        assert (
            gold == part.gold_answer(own)
            and held.verify(task, wrap_answer(gold)).correct
            and held.is_correct_answer(task, gold)
        )
        wrong = part.verify(own, part.simulate_attempt(own, [], random.Random(3), follow_hint=False, correct=False))
        for question in ("hint", "misleading_hint"):
            ours = getattr(held, question)(task, [wrong], random.Random(1))
            assert ours == getattr(part, question)(own, [wrong], random.Random(1))
        text = f"The answer is {gold}."
        assert held.find_answers(task, text) == part.find_answers(own, text) != []
        assert held.answer_parts(task, gold) == part.answer_parts(own, gold)
    with pytest.raises(DataError, match="names no part"):
        held.verify(held.task("train", 0).model_copy(update={"public": {"low": 1, "high": 8}}), "x")


def test_what_a_part_can_do_more_the_mixture_can_do_with_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worked solutions, perturbed copies, walks that an attempt holds, and batches to judge."""
    held = mixture(
        {"environment": {"type": "knights_knaves"}},
        {"environment": "shortest_path"},
        {"environment": "secret_code"},
    )
    puzzle, walk, code = (first(held, label) for label in held.sub_environments)
    for task in (puzzle, walk):
        told = held.worked_solution(task)
        assert told is not None and held.verify(task, told).correct
    assert held.worked_solution(code) is None
    assert without_worked_solution(held.config) == ("secret_code",)
    copies = held.perturbations(puzzle)
    assert {"renamed", "reordered"} < set(copies) <= set(perturbation_names(held.config))
    assert held.perturbations(walk) == {}
    for copy in copies.values():
        assert held.sub_environment_of(copy) == "knights_knaves" and copy.id != puzzle.id
        assert held.verify(copy, wrap_answer(held.gold_answer(copy))).correct
    assert held.attempt_contains(walk, "R R D D", "R R", "Go on.") and not held.attempt_contains(
        walk, "D R R", "R R", "Go on."
    )
    assert held.attempt_contains(code, "A B", "B A", "")
    told_of: dict[str, Any] = {}
    for label, part in held.sub_environments.items():
        monkeypatch.setattr(part, "prefetch_verdicts", partial(told_of.__setitem__, label))
    held.prefetch_verdicts([(walk, "a"), (code, "b"), (walk, "c")])
    own = walk.model_copy(update={"public": {k: v for k, v in walk.public.items() if k != "mixture"}})
    assert told_of["shortest_path"] == [(own, "a"), (own, "c")] and list(told_of) == ["shortest_path", "secret_code"]


def test_a_row_of_a_plain_environment_becomes_a_task_of_its_part(tmp_path: Path) -> None:
    held = mixture()
    own, other = held.sub_environments["kk2"].task("train", 4), Arithmetic(Arithmetic.Config()).task("train", 0)
    rows = [{"prompt": "p", "completion": "<answer>x</answer>", "task_data": task.model_dump(mode="json")}
            for task in (own, first(held, "kk3"), other)]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows[:2]))
    read = [row.task for row in read_rows(tmp_path / "a.jsonl", held)]
    assert [held.sub_environment_of(task) for task in read] == ["kk2", "kk3"]
    assert held.verify(read[0], wrap_answer(held.sub_environments["kk2"].gold_answer(own))).correct
    (tmp_path / "b.jsonl").write_text(json.dumps(rows[2]))
    with pytest.raises(DataError, match="another environment than this run's mixture"):
        read_rows(tmp_path / "b.jsonl", held)


def test_one_system_message_stays_the_system_message_and_others_stand_before_their_problems() -> None:
    same = mixture({"environment": "guess_number"}, {"environment": "guess_number", "name": "again"})
    assert same.system_prompt() == same.sub_environments["again"].system_prompt()
    assert same.prompt(same.task("train", 0).public).startswith("I think of")
    assert mixture().system_prompt() == SYSTEM


def test_floor_and_bounds_are_the_parts_by_their_shares() -> None:
    codes = {"environment": {"type": "guess_number", "size": 4, "low": 1}, "weight": 1}
    held = mixture({**codes, "name": "four"}, {"environment": {"type": "guess_number", "size": 8}, "weight": 3})
    low, high = (part.constant_baseline().score for part in held.sub_environments.values())
    assert held.constant_baseline().score == pytest.approx(0.25 * low + 0.75 * high)
    four, eight = (part.bounds(2) for part in held.sub_environments.values())
    bounds = held.bounds(2)
    assert bounds is not None and four is not None and eight is not None
    assert bounds.without_hints == pytest.approx(0.25 * four.without_hints + 0.75 * eight.without_hints)
    assert mixture().bounds(2) is None, "knights and knaves have none"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([{"environment": "guess_number"}], "at least 2"),
        ([{"environment": "guess_number"}] * 2, "two parts are called 'guess_number'"),
        ([{"environment": "guess_number"}, {"environment": "mixture"}], "cannot be a mixture"),
        ([{"environment": "guess_number"}, {"environment": "secret_code", "weight": 0}], "greater than 0"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(parts: list[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(parts=parts)


# -- in a run ------------------------------------------------------------------------------------------------------
def config(parts: Any = None, **changes: Any) -> RunConfig:
    parts = parts or [{"environment": {"type": "guess_number", "size": 4}}, {"environment": "secret_code", "weight": 1}]
    stage = {"name": "rl", "method": "rl2f", "steps": 4, "tasks_per_step": 6, "group_size": 2}
    made = parse_config(
        {"environment": {"type": "mixture", "environments": parts}, "rollout": {"max_new_tokens": 200, "max_turns": 2,
         "max_seq_len": 4000}, "stages": [stage], "evaluation": {"num_tasks": 24}, **changes}
    )  # fmt: skip
    assert isinstance(made, RunConfig)
    return made


def said(text: str, rng: Any) -> str:
    """Guesses numbers, and has no idea of codes."""
    _, found, rest = text.rpartition("whole number from ")
    if not found or "ode" in text:
        return wrap_answer("Z Z Z")
    low, _, high = rest.partition(".")[0].partition(" to ")
    return wrap_answer(str(rng.randint(int(low), int(high))))


def test_a_step_has_numbers_of_each_part_and_a_plain_environment_has_none() -> None:
    settings = config()
    engine = build_engine(settings, FakeBackend(script=said))
    method = registry.get("method", "rl2f")(settings.stages[0].method)
    collector = Collector(engine, settings.stages[0], seed=1)
    groups = collector.rollouts(collector.resolve(0), method)
    values = part_metrics(groups, 2, method, [engine.environment] * len(groups))
    assert values["tasks/guess_number"] + values["tasks/secret_code"] == 6 and values["tasks/secret_code"] >= 2
    for name in ("guess_number", "secret_code"):
        own = [r.dialogue for g in groups if g.task.environment == name for r in g.rollouts]
        assert values[f"solved/{name}"] == pytest.approx(sum(d.solved for d in own) / len(own))
        firsts = sum(d.turns[0].verdict.correct for d in own) / len(own)
        assert values[f"solved_first/{name}"] == pytest.approx(firsts)
        assert values[f"reward/{name}"] == pytest.approx(sum(t.reward for d in own for t in d.turns) / len(own))
    assert values["solved/guess_number"] > 0 == values["solved/secret_code"] == values["groups/frac_mixed/secret_code"]
    plain = build_engine(config().model_copy(update={"environment": PLAIN}), FakeBackend()).environment
    assert part_metrics(groups, 2, method, [plain] * len(groups)) == {}


def test_the_floor_of_a_step_is_that_of_the_levels_it_played() -> None:
    """One task in 4 numbers and three in 8: the best constant answers solve 1/4 and 1/8."""
    levels: list[dict[str, Any]] = [
        {"settings": {f"environments.{i}.environment.size": size for i in (0, 1)}, "steps": steps}
        for size, steps in ((4, 1), (8, None))
    ]
    parts = [{"environment": {"type": "guess_number", "low": 1}, "name": name} for name in ("a", "b")]
    stage = {"name": "rl", "method": "rl2f", "steps": 4, "tasks_per_step": 4, "group_size": 2,
             "curriculum": {"levels": levels, "replay_fraction": 0.5}}  # fmt: skip
    settings = config(parts=parts, stages=[stage])
    curriculum = tracker_for_stage(settings, settings.stages[0], build_engine(settings, FakeBackend()))
    assert curriculum is not None
    easy, hard = (engine.environment.task("train", 0) for engine in curriculum.engines)
    worlds = [curriculum.environment_of(tag_level(task, k)) for task, k in ((easy, 1), (hard, 2), (hard, 2), (hard, 2))]
    assert [world.config.environments[0].environment.size for world in worlds] == [4, 8, 8, 8]
    floors = [world.constant_baseline().score for world in (worlds[0], worlds[1])]
    assert floors == pytest.approx([1 / 4, 1 / 8]) and constant_baseline(worlds) == {
        "constant_baseline": pytest.approx((1 / 4 + 3 / 8) / 4)
    }


def test_a_shuffled_hint_comes_from_another_task_of_the_same_part_and_leaks_are_read_by_it() -> None:
    engine = build_engine(config(), FakeBackend())
    environment, recorded = engine.environment, []
    for index in range(12):
        task = environment.task("test", index)
        verdict = environment.verify(
            task, environment.simulate_attempt(task, [], random.Random(0), follow_hint=False, correct=False)
        )
        hint = Hint(text=environment.hint(task, [verdict], random.Random(0)), teacher="scripted")
        turn = Turn(index=0, attempt="x", verdict=verdict, hint=hint)
        recorded.append((task, Dialogue(id=task.id, task_id=task.id, group="", index=0, turns=(turn,),
                                        stop_reason=StopReason.EXHAUSTED)))  # fmt: skip
    matches = RecordedHints(environment, recorded, "scripted")
    for task, _ in recorded:
        label = environment.sub_environment_of(task)
        ((told, *_),) = matches.match(task, 0)
        assert told.source_task.startswith(f"{label}/test/") and told.source_task != task.id
        assert (told.text in ("Too low.", "Too high.", "No whole number was found.")) == (label == "guess_number")
    for detector in engine.guard.detectors:
        for task, _ in recorded[:6]:
            assert detector.check(LeakQuery(task, f"It is {environment.gold_answer(task)}.")).leaked
            assert not detector.check(LeakQuery(task, "Try again.")).leaked


@pytest.mark.slow
def test_the_report_has_a_section_a_part_with_all_controls_and_the_part_s_own_reference_lines(tmp_path: Path) -> None:
    settings = config(evaluation={"num_tasks": 24, "checkpoints": []})
    run_dir = RunDir.create(tmp_path / "run", settings)
    journal = Journal(run_dir, JsonlSink(run_dir.events_path))
    assert evaluate_run(settings, RunContext(journal), FakeBackend(script=said), {"base": None})
    report = EvaluationReport.model_validate_json((run_dir.evaluation / "report.json").read_bytes())
    assert (report.environment, report.tasks) == ("mixture", 24)
    assert [part.environment for part in report.parts] == ["guess_number", "secret_code"]
    assert sum(part.tasks for part in report.parts) == 24 and all(part.tasks >= 11 for part in report.parts)
    for part, single in zip(report.parts, ("1 of 4", "3 letters of 4"), strict=True):
        assert part.conditions == report.conditions == list(settings.evaluation.conditions) and part.references
        assert single.split()[0] in part.level
        assert part.effect("base") is not None and part.constant_baseline is not None
    solved = [part.metrics("base", "hints") for part in report.parts]
    whole = report.metrics("base", "hints")
    assert whole is not None and all(held is not None for held in solved)
    shares = [held["cum_acc/2"] for held in solved if held is not None]
    assert shares[0].value > 0 == shares[1].value and shares[0].low is not None
    assert whole["cum_acc/2"].value == pytest.approx(
        sum(s.value * part.tasks for s, part in zip(shares, report.parts, strict=True)) / 24
    )
    text = (run_dir.evaluation / "report.md").read_text()
    assert text.count("\n## Evaluation of ") == 2 and text.count("\n### Checkpoints under all conditions") == 2
    assert "guess_number, 1 of 4" in (run_dir.evaluation / "report.html").read_text()
    write_report(report, run_dir)
