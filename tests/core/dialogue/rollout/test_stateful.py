"""Dialogues with a stateful environment: rollouts, rewards, forks, demonstrations, evaluation, training, mixture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.metrics.dialogues import compute_metrics
from rl2f_core.dialogue.rollout.build import build_engine, with_teacher
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.dialogue.rollout.leak_guard import LeakGuard
from rl2f_core.dialogue.rollout.transcript import rollout_from_text
from rl2f_core.environments.base import CONTENTLESS, wrap_answer
from rl2f_core.environments.mixture import Mixture
from rl2f_core.environments.stateful import OracleEnvironment, StatefulEnvironment
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.evaluation.counterfactual.fork_points import fork_point_at
from rl2f_core.evaluation.evaluate import EvaluationRunner, skipped_conditions, supported_conditions
from rl2f_core.evaluation.rescoring import rescore
from rl2f_core.leaks.base import LeakDetector, LeakQuery
from rl2f_core.learning.methods.sft import SFT
from rl2f_core.learning.training.demonstrations import demonstrate
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, MetricEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.types import DEMONSTRATION, Dialogue, Hint, LeakReport, Rollout, StopReason, Task, Verdict

pytestmark = pytest.mark.usefixtures("corridor")


def config(**changes: Any) -> Any:
    data = {
        "environment": "corridor",
        "backend": "fake",
        "reward": {"preset": "environment"},
        "rollout": {"max_turns": 5, "max_new_tokens": 60, "max_seq_len": 4096},
        "stages": [{"name": "rl", "method": "rl2f", "steps": 1}],
        "leak_detection": {"detectors": []},
    }
    return parse_config(data | changes)


def engine_of(*actions: str, **changes: Any) -> RolloutEngine:
    """A student that takes these actions, whatever it reads."""

    def script(text: str, rng: Any) -> str:
        return wrap_answer(actions[text.count("<|im_start|>assistant") - 1])

    return build_engine(config(**changes), FakeBackend(script=script))


def task_of(engine: RolloutEngine, start: int, flag: int) -> Task:
    task = engine.environment.task("test", 0)
    return task.model_copy(update={"public": {"start": start}, "privileged": {"flag": flag}})


def request(engine: RolloutEngine, start: int = 3, flag: int = 5, **more: Any) -> RolloutRequest:
    return RolloutRequest(task_of(engine, start, flag), "d", "g", 0, 7, **more)


def run(engine: RolloutEngine, **more: Any) -> Rollout:
    (rollout,) = engine.run([request(engine, **more)])
    return rollout


def texts(engine: RolloutEngine, rollout: Rollout) -> str:
    return str(engine.backend.tokenizer.decode(rollout.sequences[-1].token_ids))


# -- rollouts ------------------------------------------------------------------------------------------------------
def test_the_student_reads_the_observation_and_then_the_hint() -> None:
    engine = engine_of("left", "right", "right", "right")
    rollout = run(engine)
    dialogue = rollout.dialogue
    assert [t.verdict.observation for t in dialogue.turns] == [f"You are at {k}." for k in (2, 3, 4, 5)]
    assert dialogue.turns[0].reply == "You are at 2.\n\nThe flag is ahead of you."
    assert "user\nYou are at 2.\n\nThe flag is ahead of you.\nassistant" in texts(engine, rollout)
    assert (dialogue.stop_reason, dialogue.solved_at) == (StopReason.SOLVED, 4)
    assert [t.reward for t in dialogue.turns] == [-1, -1, -1, 10]
    metrics = compute_metrics([dialogue], 5)
    assert metrics["cum_acc/3"].value == 0 and metrics["cum_acc/4"].value == 1


def test_an_invalid_action_is_a_message_and_a_used_turn() -> None:
    dialogue = run(engine_of("fly", "right", "right"), flag=4, max_turns=2).dialogue
    first = dialogue.turns[0].verdict
    assert first.observation == "This is not a valid action. Valid actions: left, right."
    assert (first.parsed, first.well_formed, first.reward, first.done) == ("fly", False, 0.0, False)
    assert dialogue.turns[1].verdict.correct and dialogue.solved_at == 2


def test_the_end_of_an_episode_ends_the_dialogue() -> None:
    dialogue = run(engine_of("left", "left", "left", "left"), start=2).dialogue
    assert (dialogue.stop_reason, len(dialogue.turns), dialogue.solved) == (StopReason.ENDED, 2, False)
    assert dialogue.turns[-1].hint is None and dialogue.turns[-1].verdict.done and dialogue.trainable
    assert compute_metrics([dialogue], 5)["stop/ended"].value == 1


def test_an_episode_without_an_end_uses_all_turns() -> None:
    dialogue = run(engine_of(*["left", "right"] * 3)).dialogue
    assert (dialogue.stop_reason, len(dialogue.turns)) == (StopReason.EXHAUSTED, 5)


def test_the_reward_of_the_environment_has_a_weight() -> None:
    engine = engine_of("right", "right", reward={"preset": "environment", "environment_weight": 0.05})
    assert [t.reward for t in run(engine).dialogue.turns] == [-0.05, 0.5]
    with pytest.raises(ConfigError, match="needs a stateful environment or verifiers, which 'secret_code' is not"):
        config(environment="secret_code")


def test_a_repeated_action_is_no_repeated_answer() -> None:
    engine = engine_of(*["right"] * 4, reward={"preset": "binary", "repeat_answer_penalty": 0.5})
    assert [t.reward for t in run(engine, start=1, flag=5).dialogue.turns] == [0, 0, 0, 1]


def test_progress_is_the_decrease_of_the_distance() -> None:
    engine = engine_of("left", *["right"] * 3, reward={"preset": "binary", "progress_weight": 1})
    assert [t.reward for t in run(engine).dialogue.turns] == pytest.approx([0, 0.1, 0.1, 1.1])


def test_a_contentless_hint_is_no_text_beside_an_observation() -> None:
    turn = run(engine_of("left", "right", "right", "right", teacher="contentless")).dialogue.turns[0]
    assert turn.hint is not None and turn.hint.text == "" and turn.reply == turn.verdict.observation
    said = run(engine_of("left", *["right"] * 3, teacher={"type": "contentless", "text": "Go on."})).dialogue.turns[0]
    assert said.reply == "You are at 2.\n\nGo on."
    plain = build_engine(config(environment="guess_number", teacher="contentless", reward={}), FakeBackend())
    (rollout,) = plain.run([RolloutRequest(plain.environment.task("test", 0), "d", "g", 0, 7)])
    assert all(t.reply == CONTENTLESS for t in rollout.dialogue.turns[:-1])


def test_a_reprompt_shows_the_observation() -> None:
    rollouts = {"max_turns": 5, "max_new_tokens": 60, "max_seq_len": 4096, "prompting": "reprompt"}
    stages = [{"name": "rl", "method": "rltf_grpo", "steps": 1}]
    engine = engine_of("left", "left", "left", rollout=rollouts, stages=stages)
    rollout = run(engine)
    second = Rollout(rollout.dialogue, rollout.sequences[1:2])
    assert "You are at 2.\n\nThe flag is ahead of you." in texts(engine, second)


def test_a_leaking_hint_is_replaced_by_the_observation_alone() -> None:
    engine = engine_of("right", "right", leak_detection={"detectors": ["exact"], "action": "resample"})

    def hint(task: Task, attempts: Any, rng: Any) -> str:
        return f"Do this: {engine.environment.gold_answer(task)}."

    engine.environment.hint = hint  # type: ignore[attr-defined]
    turn = run(engine).dialogue.turns[0]
    assert turn.hint is not None and turn.hint.is_replaced and turn.reply == "You are at 4."


class Reading(LeakDetector):
    """Keeps what it is asked."""

    def check(self, query: LeakQuery) -> LeakReport:
        self.queries = [*getattr(self, "queries", []), query]
        return LeakReport(leaked=False)


def test_leak_detectors_read_observations_before_a_hint_in_a_run_and_in_a_rescore() -> None:
    engine = engine_of("right", "left", "right", "right")
    config: Any = SimpleNamespace(type="reading")
    detector: Any = Reading(config, engine.environment)
    screened = replace(engine, guard=LeakGuard([detector], "flag", 0, engine.environment))
    asked = request(screened)
    (rollout,) = screened.run([asked])
    ahead = "The flag is ahead of you."
    assert [q.hints for q in detector.queries][:2] == [(), (f"You are at 4.\n\n{ahead}",)]
    event = DialogueEvent.of("train", "rl", 1, asked.task, rollout.dialogue)
    line = rescore._Line.model_validate_json(event.model_dump_json())
    assert [query for _, query in rescore._queries(line)] == detector.queries


# -- state from recorded actions -----------------------------------------------------------------------------------
def test_a_dialogue_continues_from_its_recorded_turns_as_if_it_had_not_stopped() -> None:
    engine = engine_of("left", "right", "left", "right", "right")
    whole = run(engine)
    for k in range(1, 5):
        again = run(engine, turns=whole.dialogue.turns[:k])
        assert again.dialogue == whole.dialogue and again.sequences[0].token_ids == whole.sequences[0].token_ids


def test_a_fork_whose_observations_do_not_match_is_refused() -> None:
    engine = engine_of("left", "right", "right", "right")
    turns = run(engine).dialogue.turns
    moved = turns[1].model_copy(update={"verdict": turns[1].verdict.model_copy(update={"observation": "You fell."})})
    with pytest.raises(DataError, match=r"at turn 2 the observation differs.*You are at 3"):
        run(engine, turns=(turns[0], moved))
    with pytest.raises(DataError, match="does not match the environment: at turn 1"):
        run(engine, start=6, flag=8, turns=turns[:1])


def test_no_fork_continues_after_the_end_of_an_episode() -> None:
    engine = engine_of("left", "left")
    asked = request(engine, start=2)
    event = DialogueEvent.of("train", "rl", 1, asked.task, engine.run([asked])[0].dialogue)
    assert fork_point_at(event, 0).prefix(None)[0].verdict.observation == "You are at 1."
    with pytest.raises(DataError, match="episode ended at this turn"):
        fork_point_at(event, 1)


def test_a_fork_continues_a_stateful_dialogue_under_other_hints(tmp_path: Path) -> None:
    """The student goes where the last hint points."""

    def script(text: str, rng: Any) -> str:
        return wrap_answer("left" if "behind you." in text.split("<|im_start|>user")[-1] else "right")

    made = config(teacher="misleading")
    engine = build_engine(made, FakeBackend(script=script))
    asked = request(engine, start=3, flag=5)
    (rollout,) = engine.run([asked])
    assert [t.verdict.parsed for t in rollout.dialogue.turns] == ["right", "left", "left", "left", "left"]
    point = fork_point_at(DialogueEvent.of("train", "rl", 1, asked.task, rollout.dialogue), 1)
    true = Hint(text="The flag is ahead of you.", teacher="edited")
    forked = with_teacher(engine, registry.get("teacher", "scripted").Config())
    (branch,) = forked.run([replace(asked, turns=point.prefix(true))])
    assert [t.verdict.parsed for t in branch.dialogue.turns] == ["right", "left", "right", "right"]
    assert branch.dialogue.solved


def test_texts_of_an_episode_become_its_rollout() -> None:
    engine = engine_of()
    attempts = [wrap_answer(action) for action in ("right", "right")]
    rollout = rollout_from_text(engine, request(engine), attempts, ["Go on."])
    assert rollout.dialogue.solved and rollout.dialogue.turns[0].reply == "You are at 4.\n\nGo on."
    ended = rollout_from_text(engine, request(engine, start=1), [wrap_answer("left")]).dialogue
    assert ended.stop_reason is StopReason.ENDED


# -- demonstrations, evaluation, training --------------------------------------------------------------------------
def test_demonstrations_follow_the_oracle_as_often_as_configured() -> None:
    engine = engine_of(rollout={"max_turns": 9, "max_new_tokens": 60, "max_seq_len": 4096})
    asked = [RolloutRequest(task_of(engine, 2, 7), f"d{k}", "g", k, k) for k in range(20)]
    oracle = demonstrate(engine, asked, SFT.Config(hint_follow_rate=1.0), 9)
    assert all([t.verdict.parsed for t in r.dialogue.turns] == ["right"] * 5 for r in oracle)
    assert all(r.dialogue.solved and r.dialogue.policy == DEMONSTRATION for r in oracle)
    wander = demonstrate(engine, asked, SFT.Config(hint_follow_rate=0.0), 9)
    actions = [t.verdict.parsed for r in wander for t in r.dialogue.turns]
    assert 0.3 < actions.count("left") / len(actions) < 0.7
    assert {r.dialogue.stop_reason for r in wander} >= {StopReason.ENDED, StopReason.EXHAUSTED}


def test_conditions_of_independent_attempts_are_skipped_with_a_message() -> None:
    made = config()
    assert supported_conditions(made) == ["hints", "contentless", "shuffled", "misleading"]
    assert "depend on each other" in skipped_conditions(made)["resample"]
    assert supported_conditions(config(environment="guess_number", reward={}))[2] == "resample"


def test_every_supported_condition_is_evaluated() -> None:
    made = config(evaluation={"num_tasks": 8, "samples_per_task": 2})

    def script(text: str, rng: Any) -> str:
        said = text.split("<|im_start|>user")[-1]
        return wrap_answer(
            "left" if "behind" in said else "right" if "ahead" in said else rng.choice(("left", "right"))
        )

    runner = EvaluationRunner(made, FakeBackend(script=script))
    solved: dict[str, float] = {}
    recorded: dict[str, list[Dialogue]] = {}
    for condition in supported_conditions(made):
        dialogues = runner.evaluate({"base": None}, condition, recorded)["base"]
        recorded = recorded or {"base": dialogues}
        assert not [d.error for d in dialogues if d.error]
        solved[condition] = sum(d.solved for d in dialogues) / len(dialogues)
    assert list(solved) == ["hints", "contentless", "shuffled", "misleading"]
    assert solved["hints"] > solved["contentless"] > solved["misleading"]


def test_a_stateful_environment_is_warmed_up_and_trained_on(tiny: Path, tmp_path: Path) -> None:
    more = {"steps": 1, "tasks_per_step": 2, "group_size": 2}
    made = config(
        model={"name": str(tiny), "dtype": "float32", "device": "cpu"},
        backend="hf",
        rollout={"max_turns": 3, "max_new_tokens": 8, "max_seq_len": 512},
        stages=[{"name": "warm", "method": "sft", **more}, {"name": "rl", "method": "rl2f", **more}],
        evaluation={"checkpoints": []},
        preflight={"num_tasks": 2, "samples_per_task": 2, "ignore_failure": True},
    )
    run_dir = RunDir.create(tmp_path / "run", made)
    assert execute(made, run_dir, JsonlSink(run_dir.events_path), lambda: False).status == "succeeded"
    events = list(read_events(run_dir.events_path, strict=True))
    assert [(e.stage, e.step) for e in events if isinstance(e, MetricEvent)][:2] == [("warm", 1), ("rl", 1)]
    dialogues = [e.dialogue for e in events if isinstance(e, DialogueEvent)]
    assert all(t.verdict.observation for d in dialogues for t in d.turns)
    assert {d.policy for d in dialogues} >= {DEMONSTRATION, "rl@0"}


# -- mixture -------------------------------------------------------------------------------------------------------
def test_a_mixture_holds_environments_with_and_without_a_state() -> None:
    mixed = Mixture(Mixture.Config(environments=({"environment": "corridor"}, {"environment": "guess_number"})))
    assert not isinstance(mixed, StatefulEnvironment)
    tasks = {mixed.sub_environment_of(t): t for t in (mixed.task("test", k) for k in range(4))}
    state = mixed.restore(tasks["corridor"], ())
    assert state == tasks["corridor"].public["start"] and mixed.restore(tasks["guess_number"], ()) is None
    first = mixed.verify_turn(tasks["corridor"], (), wrap_answer("left"))
    assert first.observation == f"You are at {tasks['corridor'].public['start'] - 1}."
    assert mixed.verify_turn(tasks["guess_number"], (), wrap_answer("3")).observation is None
    assert "resample" in skipped_conditions(config(environment=mixed.config, reward={}))
    worlds = Mixture(Mixture.Config(environments=({"environment": "corridor"}, {"environment": "taxi"})))
    assert isinstance(worlds, OracleEnvironment) and worlds.stateful
    task = next(t for t in (worlds.task("test", k) for k in range(4)) if t.environment == "taxi")
    verdicts: list[Verdict] = []
    for action in worlds.plan(task):
        verdicts.append(worlds.verify_turn(task, verdicts, wrap_answer(action)))
    assert verdicts[-1].correct
