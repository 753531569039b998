"""Evaluation of a scripted student: equal tasks, seeds and budget under all conditions, no repeated rollouts."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from run_helpers import undrawn_figures

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.rollout.build import build_environment
from rl2f_core.dialogue.rollout.engine import derive_seed, turn_seed
from rl2f_core.errors import AdapterError, DataError
from rl2f_core.evaluation.evaluate import (
    EvaluationRunner,
    _join,
    checkpoint_batches,
    describe_levels,
    dialogues_path,
    evaluate_run,
    read_dialogues,
)
from rl2f_core.evaluation.report import EvaluationReport
from rl2f_core.models.backends.base import Generation, GenerationRequest, SamplingParams
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.context import Progress, RunContext
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, LogEvent, MetricEvent, StatusEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.run.journal import Journal
from rl2f_core.types import Dialogue, StopReason, Turn, Verdict

CONDITIONS = ("hints", "contentless", "resample", "shuffled", "misleading")
NAMES = ("base", "rl/a", "rl_a")
TASKS, SAMPLES, TURNS = 5, 2, 3


def guess(text: str, rng: random.Random) -> str:
    """Chance decides, and now and then the model writes line ends of its own."""
    low, high = map(int, re.findall(r"from (\d+) to (\d+)", text)[0])
    return ("so\u2028hm\x85" if rng.random() < 0.3 else "") + f"<answer>{rng.randint(low, high)}</answer>"


class Recording(FakeBackend):
    """Keeps what it was asked, and which adapters it was given."""

    asked: list[tuple[GenerationRequest, SamplingParams, str | None]]
    loaded: list[str]

    def generate(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None = None
    ) -> list[Generation]:
        self.asked = [*getattr(self, "asked", []), *((p, sampling, adapter) for p in prompts)]
        return super().generate(prompts, sampling, adapter)

    def load_adapter(self, name: str, folder: Path) -> None:
        self.loaded = [*getattr(self, "loaded", []), name]


def make_config(**changes: Any) -> BaseRun:
    data = {
        "kind": "eval",
        "adapters": {"base": None},
        "environment": {"type": "guess_number", "size": 6},
        "backend": {"type": "fake", "replies": ["<answer>3</answer>", "<answer>5</answer>", "<answer>2</answer>"]},
        "rollout": {"max_turns": 7, "max_new_tokens": 60, "temperature": 0.8},
        "evaluation": {"num_tasks": TASKS, "samples_per_task": SAMPLES, "max_turns": TURNS},
    }
    return parse_config(data | changes)


class Played:
    """One whole evaluation."""

    def __init__(self, folder: Path) -> None:
        self.config = make_config()
        self.run_dir = RunDir.create(folder / "run", self.config)
        self.backend = Recording(script=guess)
        self.journal = Journal(self.run_dir, JsonlSink(self.run_dir.events_path))
        self.told: list[tuple[str, float, float | None]] = []
        played = self

        class Telling(Progress):
            def update(self, phase: str, done: float, total: float | None, note: str = "") -> None:
                played.told.append((phase, done, total))

        sources = {name: None if name == "base" else folder for name in NAMES}
        context = RunContext(self.journal, progress=Telling())
        self.finished = evaluate_run(self.config, context, self.backend, sources)
        self.journal.commit({"done": True})
        self.events = list(read_events(self.run_dir.events_path, strict=True))
        self.dialogues = {(n, c): read_dialogues(self.run_dir, n, c) for n in NAMES for c in CONDITIONS}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("evaluation"))


# -- the same for everyone -----------------------------------------------------------------------------------------
def test_tasks_and_seeds_are_equal_for_all_checkpoints_and_conditions(played: Played) -> None:
    assert played.finished
    keys = {pair: [(d.task_id, d.index, d.seed) for d in dialogues] for pair, dialogues in played.dialogues.items()}
    wanted = [
        (f"guess_number/test/{i}", j, derive_seed(1234, 0, i, j)) for i in range(TASKS) for j in range(SAMPLES)
    ]  # fmt: skip
    assert all(held == wanted for held in keys.values())
    assert len({seed for *_, seed in wanted}) == TASKS * SAMPLES


@pytest.mark.slow
def test_evaluations_draw_distinct_problems(tmp_path: Path) -> None:
    """Defect 1: the quickstart's "64 test tasks" were 32 distinct problems.

    Numbers from 1 to 40 of the test split: fewer than 20. All are evaluated, each twice, and log and report say so.
    """
    environment = {"type": "guess_number", "low": 1, "size": 40}
    evaluation = {"num_tasks": 20, "samples_per_task": 2, "max_turns": 2, "conditions": ["hints", "contentless"]}
    config = make_config(environment=environment, evaluation=evaluation)
    guesser = build_environment(config.environment)
    problems = {guesser.canonical(guesser.task("test", i)) for i in range(2000)}
    assert 1 < len(problems) < 20
    runner = EvaluationRunner(config, Recording(script=guess))
    assert sorted(map(guesser.canonical, runner.tasks)) == sorted(problems)
    assert len(runner.evaluate({"base": None}, "hints")["base"]) == 2 * len(problems)

    run_dir, status = run(config, tmp_path / "run")
    assert status == "succeeded"
    report = EvaluationReport.model_validate_json((run_dir.evaluation / "report.json").read_text())
    count = len(problems)
    assert (report.tasks, report.requested, len(set(report.problems))) == (count, 20, count)
    said = f"Only {count} distinct problems of the requested 20 were found in the test split"
    assert any(
        said in e.text for e in read_events(run_dir.events_path) if isinstance(e, LogEvent) and "problems" in e.id
    )
    text = report.to_markdown()
    assert said in text
    assert f"{count} distinct test problems × 2 samples = {2 * count} dialogues per condition, 2 turns" in text
    assert report.effect("base").n == count


def test_runs_of_other_seeds_share_the_problems_but_not_the_sampling_seeds() -> None:
    one, other = (EvaluationRunner(make_config(seed=seed), Recording(script=guess)) for seed in (0, 1))
    assert one.tasks == other.tasks
    assert not {r.seed for r in one._requests()} & {r.seed for r in other._requests()}


def test_first_attempts_are_equal_under_all_conditions(played: Played) -> None:
    firsts = {pair: [d.turns[0].attempt for d in dialogues] for pair, dialogues in played.dialogues.items()}
    assert len(set(map(tuple, firsts.values()))) == 1  # the script does not know which weights it has
    texts = firsts["base", "hints"]
    assert len(set(texts)) > 2 and any("\u2028" in text for text in texts)


@pytest.mark.parametrize(
    "condition", ["hints", "contentless", "shuffled", "misleading", "scripted", "leaking", "no_oracle"]
)
@pytest.mark.parametrize("prompting", ["append", "reprompt"])
def test_continuation_of_shared_first_attempts_equals_a_full_rollout(condition: str, prompting: str) -> None:
    config = make_config(rollout={"max_turns": 3, "max_new_tokens": 60, "temperature": 0.8, "prompting": prompting},
                         teacher="self_critique" if condition == "no_oracle" else "scripted",
                         evaluation={"num_tasks": 4, "samples_per_task": 2,
                                     "conditions": list(dict.fromkeys(["hints", condition]))})  # fmt: skip
    runner = EvaluationRunner(config, Recording(script=guess))
    whole = runner._engine(condition).run(runner._requests(), policy="base", max_turns=runner.turns)
    timed = {"turns": {"__all__": {"hint": {"usage"}}}}
    wanted = [rollout.dialogue.model_dump(exclude=timed) for rollout in whole]
    assert [
        dialogue.model_dump(exclude=timed) for dialogue in runner.evaluate({"base": None}, condition)["base"]
    ] == wanted
    assert max(len(rollout.dialogue.turns) for rollout in whole) == 3


def test_leaking_hints_state_the_answer_although_the_run_redacts_leaks() -> None:
    detected = {"detectors": [{"type": "mentions", "version": 1}], "action": "redact"}
    config = make_config(leak_detection=detected, evaluation={"num_tasks": 6, "conditions": ["leaking", "contentless"]})
    runner = EvaluationRunner(config, Recording(script=guess))
    tasks = {task.id: task for task in runner.tasks}
    dialogues = runner.evaluate({"base": None}, "leaking")["base"]
    hints = [(d.task_id, turn.hint) for d in dialogues for turn in d.turns if turn.hint is not None]
    assert len(hints) > 5
    for task, hint in hints:
        assert hint.planted == "verbatim" and not hint.is_replaced
        assert runner.engine.environment.gold_answer(tasks[task]) in hint.text
    plain = runner.evaluate({"base": None}, "contentless")["base"]
    assert not any(turn.hint.planted for d in plain for turn in d.turns if turn.hint is not None)


def test_the_environment_writes_the_hints_of_the_condition_scripted_whoever_teaches_the_run() -> None:
    conditions = ["hints", "scripted", "contentless"]
    config = make_config(teacher="contentless", evaluation={"num_tasks": 6, "conditions": conditions})
    runner = EvaluationRunner(config, Recording(script=guess))
    written = {name: [turn.hint for d in runner.evaluate({"base": None}, name)["base"] for turn in d.turns if turn.hint]
               for name in conditions}  # fmt: skip
    teachers = {name: {hint.teacher for hint in hints} for name, hints in written.items()}
    assert teachers == {"hints": {"contentless"}, "scripted": {"scripted"}, "contentless": {"contentless"}}
    assert {hint.text for hint in written["scripted"]}.isdisjoint(hint.text for hint in written["hints"])


def test_checkpoints_are_batched_up_to_the_backend_batch_size() -> None:
    def size(tasks: int, wide: int, batch_size: int = 128) -> list[int]:
        evaluation = {"num_tasks": tasks, "samples_per_task": 2, "conditions": ["hints"]}
        runner = EvaluationRunner(
            make_config(evaluation=evaluation, rollout={"max_concurrent": batch_size}), Recording(script=guess)
        )
        runner.engine.backend.preferred_batch_size = wide
        return [len(wave) for wave in checkpoint_batches(list("abcde"), runner)]

    assert size(8, 64) == [4, 1] and size(8, 64, batch_size=32) == [2, 2, 1] and size(8, 8) == [1] * 5


def test_all_conditions_have_the_same_budget(played: Played) -> None:
    assert all(len(d.turns) <= TURNS for dialogues in played.dialogues.values() for d in dialogues)
    assert {(s.max_new_tokens, s.temperature) for _, s, _ in played.backend.asked} == {(60, 0.8)}
    for name in NAMES:
        adapter = None if name == "base" else name
        asked = [p for p, _, a in played.backend.asked if a == adapter]
        after_first = sum(len(d.turns) - 1 for c in CONDITIONS if c != "resample" for d in played.dialogues[name, c])
        assert len(asked) == TASKS * SAMPLES + after_first + TASKS * SAMPLES * (TURNS - 1)
    assert played.backend.loaded == ["rl/a", "rl_a"]


def test_each_condition_has_its_teacher_and_hints(played: Played) -> None:
    said: dict[str, list[str]] = {}
    for condition in CONDITIONS:
        hints = [t.hint for d in played.dialogues["base", condition] for t in d.turns if t.hint is not None]
        said[condition] = [hint.text for hint in hints]
        teacher = {"hints": "scripted"}.get(condition, condition)
        assert all(hint.teacher == teacher for hint in hints)
    assert set(said["hints"]) | set(said["misleading"]) == {"Too low.", "Too high."}
    assert len(set(said["contentless"])) == 1 and said["resample"] == []
    compared = 0
    for true, false in zip(*(played.dialogues["base", c] for c in ("hints", "misleading")), strict=True):
        one, other = true.turns[0].hint, false.turns[0].hint
        if one is not None and other is not None:
            compared += 1
            assert one.text != other.text
    assert compared > 2
    shuffled = [t.hint for d in played.dialogues["base", "shuffled"] for t in d.turns if t.hint is not None]
    assert shuffled and all(hint.source_task for hint in shuffled)


# -- resampling ----------------------------------------------------------------------------------------------------
def test_resample_joins_independent_first_attempts(played: Played) -> None:
    named = [p for p, _, a in played.backend.asked if a is None and "." in p.cache_key.rsplit("/", 1)[1]]
    seen = {(p.cache_key.rsplit("/", 1)[0], played.backend._text(p.token_ids)) for p in named}
    opening = dict(seen)
    assert len(seen) == TASKS and all(text.count("<|im_start|>") == 3 for text in opening.values())
    for number, dialogue in enumerate(played.dialogues["base", "resample"]):
        i, j = divmod(number, SAMPLES)
        for k, turn in enumerate(dialogue.turns):
            seed = derive_seed(1234, 0, i, j, *([k] if k else []))
            assert turn.attempt == guess(opening[dialogue.task_id], random.Random(turn_seed(seed, 0)))
            assert (turn.index, turn.hint) == (k, None)
        rights = [turn.verdict.correct for turn in dialogue.turns]
        assert not any(rights[:-1]) and dialogue.solved == rights[-1]
        assert dialogue.solved or len(rights) == TURNS
        assert dialogue.stop_reason is (StopReason.SOLVED if rights[-1] else StopReason.EXHAUSTED)
    assert len({d.solved_at for d in played.dialogues["base", "resample"]}) > 1
    draws = Counter(p.cache_key for p in named)
    assert len(draws) == TASKS * SAMPLES * (TURNS - 1) and set(draws.values()) == {1}


def first(number: int, correct: bool, stop: StopReason | None = None, error: str | None = None) -> Dialogue:
    verdict = Verdict(correct=correct, score=float(correct), parsed=str(number))
    turns = () if stop is StopReason.CONTEXT_FULL else (Turn(index=0, attempt=str(number), verdict=verdict),)
    stop = stop or (StopReason.SOLVED if correct else StopReason.EXHAUSTED)
    return Dialogue(id=f"t/0.{number}", task_id="t", group="t", index=0, turns=turns, stop_reason=stop, error=error)


def test_joined_attempts_end_at_the_first_correct_one() -> None:
    joined = _join([first(0, False), first(1, True), first(2, True)])
    assert (joined.id, joined.solved_at, [t.attempt for t in joined.turns]) == ("t/0.0", 2, ["0", "1"])
    assert [t.index for t in joined.turns] == [0, 1]
    assert _join([first(0, True), first(1, False)]).solved_at == 1
    none = _join([first(0, False), first(1, False)])
    assert none.stop_reason is StopReason.EXHAUSTED and len(none.turns) == 2


def test_failed_attempt_fails_the_dialogue_unless_a_correct_one_precedes() -> None:
    broken = first(1, False, StopReason.FAILED, "it broke")
    joined = _join([first(0, False), broken, first(2, True)])
    assert (joined.id, joined.stop_reason, joined.error, len(joined.turns)) == (
        "t/0.0",
        StopReason.FAILED,
        "it broke",
        2,
    )
    assert _join([first(0, True), broken]).solved_at == 1
    cut = _join([first(0, False, StopReason.CONTEXT_FULL), first(1, True)])
    assert (cut.stop_reason, cut.turns, cut.id) == (StopReason.CONTEXT_FULL, (), "t/0.0")


# -- what is left behind -------------------------------------------------------------------------------------------
def test_events_contain_every_dialogue_and_metric_once(played: Played) -> None:
    ids = [event.id for event in played.events]
    assert len(ids) == len(set(ids))
    held = [e for e in played.events if isinstance(e, DialogueEvent)]
    assert {(e.phase, e.stage) for e in held} == {("evaluation", "evaluation")}
    by_pair: dict[Any, list[Dialogue]] = {}
    for event in held:
        assert event.task.id == event.dialogue.task_id and event.checkpoint == event.dialogue.policy
        by_pair.setdefault((event.checkpoint, event.condition), []).append(event.dialogue)
    assert by_pair == played.dialogues
    metrics = {e.stage: e.values for e in played.events if isinstance(e, MetricEvent)}
    assert set(metrics) == {f"evaluation:{name}:{condition}" for name in NAMES for condition in CONDITIONS}
    for (name, condition), dialogues in played.dialogues.items():
        solved = sum(d.solved for d in dialogues) / len(dialogues)
        assert metrics[f"evaluation:{name}:{condition}"][f"cum_acc/{TURNS}"] == pytest.approx(solved)
    assert [e.id for e in played.events if isinstance(e, LogEvent)] == ["evaluation:report"]


def test_report_is_written_in_all_formats(played: Played) -> None:
    folder = played.run_dir.evaluation
    report = EvaluationReport.model_validate_json((folder / "report.json").read_text())
    assert report.checkpoints == list(NAMES) and set(report.conditions) == set(CONDITIONS)
    assert (report.tasks, report.samples, report.turns) == (TASKS, SAMPLES, TURNS)
    assert (folder / "report.md").read_text() == report.to_markdown()
    assert (folder / "report.html").read_text().startswith("<!")
    pictures = list(folder.glob("*.png"))
    assert pictures and all(p.read_bytes().startswith(b"\x89PNG") for p in pictures)
    assert report.metrics("rl/a", "hints") == report.metrics("base", "hints")
    effect = report.effect("base", "hints")
    rates = [sum(d.solved for d in played.dialogues["base", c]) / (TASKS * SAMPLES) for c in ("hints", "contentless")]
    assert effect is not None and effect.value == pytest.approx(rates[0] - rates[1])


def test_progress_counts_checkpoint_condition_pairs(played: Played) -> None:
    assert [(p, d, t) for p, d, t in played.told] == [("evaluation", k, 15) for k in range(0, 16, len(NAMES))]


def test_similar_names_have_distinct_files(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    names = ["a/b", "a_b", "a%2Fb", "a\\b", "run:rl@2", "a b"]
    paths = {dialogues_path(run_dir, name, "hints") for name in names}
    assert len(paths) == len(names) and all(p.parent.parent == tmp_path / "evaluation" / "dialogues" for p in paths)


def test_corrupted_dialogue_file_raises(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with pytest.raises(DataError, match="Cannot read the dialogues"):
        read_dialogues(run_dir, "base", "hints")
    path = dialogues_path(run_dir, "base", "hints")
    path.parent.mkdir(parents=True)
    for text in (b'{"id": "x"', b"\xff\xfe\n"):
        path.write_bytes(text)
        with pytest.raises(DataError, match="Cannot read the dialogues"):
            read_dialogues(run_dir, "base", "hints")


# -- settings ------------------------------------------------------------------------------------------------------
def test_unset_settings_default_to_those_of_training() -> None:
    evaluation = {"num_tasks": 2, "samples_per_task": 1, "split": "validation", "seed": 5}
    runner = EvaluationRunner(make_config(evaluation=evaluation), Recording(script=guess))
    assert runner.turns == 7 and {t.split for t in runner.tasks} == {"validation"}
    (one, two) = runner.evaluate({"base": None}, "contentless")["base"]
    assert [one.seed, two.seed] == [derive_seed(5, 0, 0, 0), derive_seed(5, 0, 1, 0)] and one.policy == "base"
    hot = make_config(evaluation=evaluation | {"temperature": 1.5, "max_turns": 2})
    backend = Recording(script=lambda text, rng: "no")
    assert [len(d.turns) for d in EvaluationRunner(hot, backend).evaluate({"x": "x"}, "hints")["x"]] == [2, 2]
    assert {(s.temperature, a) for _, s, a in backend.asked} == {(1.5, "x")}


# -- stopping and going on -----------------------------------------------------------------------------------------
def run(config: BaseRun, folder: Path, stops: Sequence[bool] = ()) -> tuple[RunDir, str]:
    """Execute what is left; `stops` answers, one after the other, whether to stop before the next condition."""
    run_dir = RunDir(folder) if (folder / "config.yaml").exists() else RunDir.create(folder, config)
    answers = iter(stops)
    ended = execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: next(answers, False))
    return run_dir, ended.status


@pytest.mark.slow
def test_resumed_evaluation_repeats_no_condition(tmp_path: Path) -> None:
    environment = {"type": "guess_number", "low": 1, "size": 60}
    config = make_config(adapters={"base": None, "x": str(tmp_path)}, environment=environment)
    stopped, status = run(config, tmp_path / "a", [False, False, True])
    assert status == "stopped" and not (stopped.evaluation / "report.json").exists()
    conditions = [e.condition for e in read_events(stopped.events_path) if isinstance(e, DialogueEvent)]
    assert Counter(conditions) == {"hints": 2 * TASKS * SAMPLES, "contentless": 2 * TASKS * SAMPLES}
    files = {p: p.stat().st_mtime_ns for p in stopped.evaluation.rglob("*.jsonl")}
    assert run(config, tmp_path / "a", [False, True])[1] == "stopped"
    assert run(config, tmp_path / "a", [True])[1] == "stopped"  # at once, and nothing is lost
    assert run(config, tmp_path / "a")[1] == "succeeded"
    assert all(p.stat().st_mtime_ns == time for p, time in files.items())

    whole, status = run(config, tmp_path / "b")
    assert status == "succeeded"
    events = {d: [e for e in read_events(d.events_path, strict=True) if not isinstance(e, StatusEvent)]
              for d in (stopped, whole)}  # fmt: skip
    assert [e.id for e in events[stopped]] == [e.id for e in events[whole]]
    assert len({e.id for e in events[stopped]}) == len(events[stopped]) == 2 * 5 * TASKS * SAMPLES + 10 + 1
    for name in ("report.json", "report.md"):
        assert (stopped.evaluation / name).read_bytes() == (whole.evaluation / name).read_bytes()
    assert json.loads(whole.heartbeat_path.read_text())["status"] == "succeeded"


def test_task_description_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = registry.get("environment", "guess_number")
    monkeypatch.setattr(kind, "describe_data", lambda self: "Two problems were left out.")
    config = make_config(
        evaluation={
            "num_tasks": 2,
            "samples_per_task": 1,
            "conditions": ["hints", "contentless"],
        }
    )
    assert run(config, tmp_path / "run", [False, True])[1] == "stopped"
    with undrawn_figures():
        assert run(config, tmp_path / "run")[1] == "succeeded"
    said = [e.text for e in read_events(tmp_path / "run" / "events.jsonl") if isinstance(e, LogEvent)]
    assert said[0] == "Two problems were left out." and said.count(said[0]) == 1


def test_unloadable_adapter_fails_the_run_before_any_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: FakeBackend, name: str, folder: Path) -> None:
        raise AdapterError("The adapter belongs to another base model.", value=str(folder))

    monkeypatch.setattr(FakeBackend, "load_adapter", refuse)
    config = make_config(adapters={"base": None, "x": str(tmp_path)})
    with pytest.raises(AdapterError):
        run(config, tmp_path / "run")
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    assert [e.status for e in events if isinstance(e, StatusEvent)] == ["running", "failed"]
    assert not any(isinstance(e, DialogueEvent) for e in events)


def test_report_names_all_evaluated_levels() -> None:
    task = build_environment(make_config().environment).task("test", 0)

    def at(*levels: str) -> str:
        return describe_levels([task.model_copy(update={"level": level}) for level in levels])

    assert at("3 people", "2 people", "3 people") == "2 people; 3 people" and at("2 people") == "2 people"
    assert at(*"dbca") == "a to d (4 levels)"
