"""Reflect-RL: samples of the warm-up, negative examples, replayed successes, and whole runs on the tiny model."""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Any

import pytest

from rl2f_core.config.loading import parse_config
from rl2f_core.config.presets import preset
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutEngine
from rl2f_core.dialogue.rollout.enumeration import REFLECT
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.counterfactual.config import choose_checkpoints
from rl2f_core.learning.learner.importance_sampling import with_old_logprobs
from rl2f_core.learning.methods.base import StepContext
from rl2f_core.learning.methods.reflect_rl import ReflectRL, ReflectSFT
from rl2f_core.learning.training.collector import Collector
from rl2f_core.learning.training.reproduction import reproduce
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, MetricEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.run.kinds.fork import fork_config
from rl2f_core.types import Group, TrainingSample

KINDS = ("reflection", "action_with_reflection", "action")
Collected = list[tuple[Group, list[TrainingSample]]]
pytestmark = pytest.mark.usefixtures("corridor")


def data(**changes: Any) -> dict[str, Any]:
    return {
        "environment": {"type": "taxi", "size": 3, "goal": "pickup", "dangerous": True},
        "backend": "fake",
        "teacher": "contentless",
        "reward": {"preset": "environment", "environment_weight": 0.05},
        "rollout": {"max_turns": 6, "max_new_tokens": 4, "max_seq_len": 2048, "prompting": "enumerate"},
        "stages": [{"name": "warm", "method": "reflect_sft", "steps": 1, "tasks_per_step": 3, "group_size": 1}],
        "leak_detection": {"detectors": []},
        "evaluation": {"checkpoints": []},
        "preflight": {"num_tasks": 1, "samples_per_task": 2, "ignore_failure": True},
    } | changes


def collected(method: Any, engine: RolloutEngine, stage: Any, steps: int = 1) -> Collected:
    """The groups of some steps with their samples, in order."""
    collector = Collector(engine, stage, seed=3)
    found = []
    for step in range(steps):
        method.begin_step(StepContext.of(engine, step, steps))
        found += [(group, method.samples(group)) for group in method.collect(collector, collector.resolve(step))]
    return found


def texts(engine: RolloutEngine, sample: TrainingSample) -> tuple[str, str]:
    """Prompt and target of a sample."""
    start = next(i for i, weight in enumerate(sample.ce_weights) if weight)
    decode = engine.backend.tokenizer.decode
    return decode(sample.token_ids[:start]), decode(sample.token_ids[start:])


def written(**options: Any) -> tuple[RolloutEngine, Collected]:
    config: Any = parse_config(data())
    engine = build_engine(config, FakeBackend())
    return engine, collected(ReflectSFT(ReflectSFT.Config(**options)), engine, config.stages[0])


# -- the warm-up ---------------------------------------------------------------------------------------------------
def test_each_state_has_the_three_kinds_of_samples_with_the_oracle_as_target() -> None:
    engine, found = written(samples=KINDS, oracle_rate=0.5)
    environment: Any = engine.environment
    checked = 0
    for group, samples in found:
        (dialogue,) = (rollout.dialogue for rollout in group.rollouts)
        assert len(samples) == 3 * len(dialogue.turns)
        for k in range(len(dialogue.turns)):
            state = environment.restore(group.task, [t.verdict for t in dialogue.turns[:k]])
            best = environment.oracle_action(group.task, state)
            reflection = environment.reflection(group.task, state, best)
            (about, said), (with_it, label), (without, plain) = (texts(engine, s) for s in samples[3 * k : 3 * k + 3])
            assert said == reflection and REFLECT in about and ": A" not in about and reflection not in about
            assert f"\n{best}: {label}\n" in with_it and f"\n\n{reflection}\n\n" in with_it
            assert f"\n{best}: {plain}\n" in without and reflection not in without
            assert [*samples[3 * k + 1].allowed_tokens.values()] == [[ord(c) for c in "ABCDEF"]]
            assert not samples[3 * k].allowed_tokens
            checked += 1
    assert checked >= 5


def test_the_oracle_rate_is_that_of_the_episode_and_not_of_the_targets() -> None:
    engine, found = written(samples=("action",), oracle_rate=0.0)
    environment: Any = engine.environment
    actions = [(g.task, t.verdict.parsed) for g, _ in found for t in g.rollouts[0].dialogue.turns[:1]]
    assert any(a != environment.oracle_action(task, environment.initial(task)) for task, a in actions)


def test_a_negative_example_corrects_a_wrong_step_of_the_oracles_path_and_trains_nothing_else() -> None:
    engine, found = written(samples=("reflection", "action_with_reflection"), oracle_rate=1.0, negatives=2)
    environment: Any = engine.environment
    checked = 0
    for group, samples in found:
        turns = len(group.rollouts[0].dialogue.turns)
        negatives = samples[2 * turns :]
        for reflection, action in zip(negatives[::2], negatives[1::2], strict=True):
            about, said = texts(engine, reflection)
            prompt, label = texts(engine, action)
            path = about.split("Actions so far: ")[1].split(".")[0].split(", ")
            plan = environment.plan(group.task)
            assert path[:-1] == plan[: len(path) - 1] and path[-1] != plan[len(path) - 1]
            assert said.startswith(f"The last action, {path[-1]}, was a mistake. The passenger is ")
            best = said.split("The next action is ")[1].rstrip(".")
            assert said in prompt and f"\n{best}: {label}\n" in prompt
            assert sum(action.ce_weights) == 1
            checked += 1
    assert checked >= 3


def test_the_warm_up_needs_an_oracle() -> None:
    with pytest.raises(ConfigError, match=r"does not support rollout\.prompting 'append'"):
        parse_config(data(rollout={"max_turns": 2}))
    with pytest.raises(ConfigError, match="imitates an oracle"):
        parse_config(data(environment={"type": "gymnasium", "id": "FrozenLake-v1"}))


# -- replay --------------------------------------------------------------------------------------------------------
def test_successes_of_earlier_steps_are_replayed_with_importance_weights() -> None:
    stage = {"name": "rl", "method": {"type": "reflect_rl", "replay_per_step": 2, "replay_size": 3}, "steps": 4,
             "tasks_per_step": 4, "group_size": 4}  # fmt: skip
    config: Any = parse_config(data(stages=[stage], environment="corridor"))
    engine = build_engine(config, FakeBackend(script=lambda text, rng: rng.choice("AB")))
    method = ReflectRL(config.stages[0].method)
    found = collected(method, engine, config.stages[0], steps=4)
    replays: dict[int, set[str]] = {}
    for i, (_, samples) in enumerate(found):
        for sample in samples:
            if sample.dialogue.endswith(" replay"):
                assert sample.policy_loss == "importance_sampling"
                replays.setdefault(i // 4, set()).add(sample.dialogue.removesuffix(" replay"))
            else:
                assert sample.policy_loss == "ppo" and len(sample.weighted_positions) == 1
    solved = {r.dialogue.id: i // 4 for i, (g, _) in enumerate(found) for r in g.rollouts if r.dialogue.solved}
    assert 0 not in replays and {len(names) for names in replays.values()} <= {1, 2} and max(replays) == 3
    assert all(solved[name] < step for step, names in replays.items() for name in names)
    stored = json.loads(json.dumps(method.state()))
    assert len(stored["successes"]) == 3
    resumed = ReflectRL(config.stages[0].method)
    resumed.load_state(stored)
    assert resumed.state() == method.state()


def test_a_replayed_episode_has_the_tokens_and_advantages_of_its_own_step() -> None:
    stage = {"name": "rl", "method": {"type": "reflect_rl", "replay_per_step": 50}, "steps": 2, "tasks_per_step": 4,
             "group_size": 4}  # fmt: skip
    config: Any = parse_config(data(stages=[stage], environment="corridor"))
    engine = build_engine(config, FakeBackend(script=lambda text, rng: rng.choice("AB")))
    found = collected(ReflectRL(config.stages[0].method), engine, config.stages[0], steps=2)
    fresh = [s for _, samples in found[:4] for s in samples]
    replayed = [s for s in found[4][1] if s.dialogue.endswith(" replay")]
    assert len(replayed) > 5
    for sample in replayed:
        (origin,) = (
            s for s in fresh if f"{s.dialogue} replay" == sample.dialogue and list(s.token_ids) == sample.token_ids
        )
        for name in ("logprobs", "advantages", "rl_weights", "policy_mask"):
            assert list(getattr(origin, name)) == list(getattr(sample, name)), name
        assert origin.allowed_tokens == sample.allowed_tokens


def test_the_importance_weight_of_a_replay_is_truncated_by_the_stage() -> None:
    """μ = ¼ and π = ¾ give the weight 3, truncated to 2; the ratio of the update then starts at 1."""
    sample = TrainingSample([1, 2], [False, True], [0, log(0.25)], [0, 0.5], [0, 1], [0, 0], [0, 0],
                            policy_loss="importance_sampling")  # fmt: skip
    corrected = with_old_logprobs(sample, [log(0.75)], clip_max=2)
    assert list(corrected.advantages) == [0, 1.0] and corrected.logprobs[1] == pytest.approx(log(0.75))


def test_more_replayed_episodes_than_are_kept_are_refused() -> None:
    method = {"type": "reflect_rl", "replay_size": 3, "replay_per_step": 4}
    with pytest.raises(ConfigError, match="more than the 3 episodes"):
        parse_config(data(stages=[{"name": "rl", "method": method, "steps": 1}]))


# -- runs ----------------------------------------------------------------------------------------------------------
def run_config(tiny: Path, **changes: Any) -> Any:
    shared = {"steps": 2, "tasks_per_step": 1, "learning_rate": 1e-3, "commit_steps": 1}
    reflector = {"name": "reflector", "method": {"type": "reflect_sft", "samples": ["reflection"]}, "group_size": 1}
    warm = {"name": "warm", "init_from": "base", "method": {"type": "reflect_sft", "negatives": 1}, "group_size": 1}
    rl = {
        "name": "rl", "method": {"type": "reflect_rl", "replay_per_step": 2, "entropy_coef": 0.01}, "group_size": 4,
        "num_iterations": 3, "importance_sampling_clip_max": 2.0,
        "curriculum": {"levels": [{"settings": {"goal": "pickup"}, "steps": 1}, {"settings": {"goal": "dropoff"}}]},
    }  # fmt: skip
    rollout = data()["rollout"] | {"max_turns": 3, "reflector": {"stage": "reflector", "max_new_tokens": 2}}
    evaluation = {"num_tasks": 2, "checkpoints": ["rl@2"], "conditions": ["hints", "reflection_shuffled",
                  "reflection_dropped", "reflection_corrupted"]}  # fmt: skip
    return parse_config(
        data(
            backend="hf",
            model={"name": str(tiny), "device": "cpu", "dtype": "float32"},
            lora={"rank": 4, "alpha": 8},
            rollout=rollout,
            stages=[{**shared, **stage} for stage in (reflector, warm, rl)],
            evaluation=evaluation,
        )
        | changes
    )


def executed(config: Any, folder: Path, stop: Any = lambda: False) -> RunDir:
    run = RunDir.create(folder, config) if not (folder / "config.yaml").exists() else RunDir.open(folder)
    execute(config, run, JsonlSink(run.events_path), stop)
    return run


@pytest.mark.slow
def test_a_run_trains_the_reflector_and_then_the_policy_and_replaces_reflections_in_its_evaluation(
    tiny: Path, tmp_path: Path
) -> None:
    config = run_config(tiny)
    whole = executed(config, tmp_path / "whole")
    events = list(read_events(whole.events_path))
    dialogues = [e for e in events if isinstance(e, DialogueEvent)]
    played = [e.dialogue for e in dialogues if e.stage == "rl" and e.phase == "train"]
    assert len(played) == 8 and all(t.reflection is not None and t.actions for d in played for t in d.turns)
    assert all(sum(c.probability or 0 for c in t.actions) == pytest.approx(1, abs=1e-3) for t in played[0].turns)
    metrics = [e.values for e in events if isinstance(e, MetricEvent) and e.stage == "rl"]
    assert metrics[0]["ratio/mean"] == pytest.approx(1, abs=0.05) and metrics[0]["optimizer_updates"] == 3
    assert (whole.evaluation / "report.json").exists()
    conditions = {e.condition for e in dialogues if e.phase == "evaluation"}
    assert conditions == {"hints", "reflection_shuffled", "reflection_dropped", "reflection_corrupted"}


@pytest.mark.slow
def test_a_run_resumes_exactly_with_its_replayed_successes(tiny: Path, tmp_path: Path) -> None:
    config = run_config(tiny, evaluation={"checkpoints": []}, retain_states=1.0)
    whole = executed(config, tmp_path / "whole")
    assert reproduce(whole).outcome == "identical"
    steps = iter(range(100))
    part = executed(config, tmp_path / "part", lambda: next(steps) >= 5)  # stop in the stage rl
    assert len(part.checkpoint_names()) < len(whole.checkpoint_names())
    part = executed(config, tmp_path / "part")
    a, b = (run.checkpoint("rl@2") / "adapter_model.safetensors" for run in (whole, part))
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("world", ["taxi", "auto_explore"])
@pytest.mark.parametrize("rows", ["plain", "reflection", "negatives"])
def test_two_steps_of_each_row_of_the_ablation_run(tiny: Path, tmp_path: Path, world: str, rows: str) -> None:
    found = preset(f"reflect_rl_small:{world}-{rows}").config().model_dump(mode="json")
    for stage in found["stages"]:
        stage |= {"steps": 2, "tasks_per_step": 1, "group_size": min(stage["group_size"], 2)}
        if stage["curriculum"]:
            stage["curriculum"]["levels"][0]["steps"] = 1
    evaluated = [name.replace("@10", "@2") for name in found["evaluation"]["checkpoints"]]
    config = parse_config(
        found
        | {"model": {"name": str(tiny), "device": "cpu", "dtype": "float32"}, "lora": {"rank": 4, "alpha": 8}}
        | {
            "evaluation": found["evaluation"] | {"num_tasks": 2, "checkpoints": evaluated},
            "preflight": data()["preflight"],
        }
    )
    run = executed(config, tmp_path / rows)
    report = json.loads((run.evaluation / "report.json").read_text())
    conditions = {row["condition"] for row in report["rows"]}
    replaced = {"reflection_shuffled", "reflection_dropped", "reflection_corrupted"}
    assert conditions == {"hints"} | (replaced if config.rollout.reflector else set())
    expected = {
        "plain": {"warmup@2", "rl@2", "sft_rl@2"},
        "reflection": {"rl@2"},
        "negatives": {"rl@2", "curriculum@2"},
    }
    assert {row["checkpoint"] for row in report["rows"]} == expected[rows]
    assert len(report["random_policy"]) == 8 and report["constant_baseline"]["score"] == 0


@pytest.mark.slow
def test_a_fork_replays_labels_and_reflections_and_continues_with_the_reflector(tiny: Path, tmp_path: Path) -> None:
    source = executed(run_config(tiny, evaluation={"checkpoints": []}), tmp_path / "source")
    played = [e for e in read_events(source.events_path) if isinstance(e, DialogueEvent) and e.phase == "train"]
    event = next(e for e in played if e.stage == "rl" and len(e.dialogue.turns) == 3)
    checkpoints = choose_checkpoints(source, ["rl@2"])
    arms = [{"hint": "original"}, {"hint": "contentless"}]
    config = fork_config(source, "source", event.id, 1, checkpoints, arms, samples=2)
    assert config.rollout.reflector is not None and config.rollout.reflector.checkpoint is not None
    fork = executed(config, tmp_path / "fork")
    branches = [e.dialogue for e in read_events(fork.events_path) if isinstance(e, DialogueEvent)]
    assert len(branches) == 4
    for branch in branches:
        assert [t.actions for t in branch.turns[:2]] == [t.actions for t in event.dialogue.turns[:2]]
        assert [t.reflection for t in branch.turns[:2]] == [t.reflection for t in event.dialogue.turns[:2]]
        assert branch.turns[2].reflection is not None and branch.turns[2].actions
