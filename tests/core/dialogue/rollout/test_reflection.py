"""The reflector: its prompt, its place in the policy's prompt, and reflections that an evaluation replaces."""

from __future__ import annotations

from typing import Any

import pytest

from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.metrics.dialogues import effects
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.dialogue.rollout.enumeration import REFLECT
from rl2f_core.environments.worlds.taxi.dynamics import IN_TAXI
from rl2f_core.environments.worlds.taxi.environment import Taxi
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.evaluate import EvaluationRunner, skipped_conditions
from rl2f_core.evaluation.report import EvaluatedTasks, build_report, findings
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.types import Dialogue, StopReason

REFLECTED = ["reflection_shuffled", "reflection_dropped", "reflection_corrupted"]
pytestmark = pytest.mark.usefixtures("corridor")


def config(**changes: Any) -> Any:
    rollout = {"max_turns": 9, "max_new_tokens": 4, "max_seq_len": 2048, "prompting": "enumerate", "reflector": {}}
    data = {
        "environment": "corridor",
        "backend": "fake",
        "teacher": "contentless",
        "reward": {"preset": "environment"},
        "rollout": rollout,
        "stages": [{"name": "rl", "method": "reflect_rl", "steps": 1}],
        "leak_detection": {"detectors": []},
        "evaluation": {"num_tasks": 12, "conditions": ["hints", *REFLECTED]},
    }
    return parse_config(data | changes)


class Adapters(FakeBackend):
    """Records which adapter generated each prompt."""

    def __init__(self, script: Any) -> None:
        super().__init__(script=script)
        self.used: list[tuple[bool, str | None, int]] = []

    def generate(self, prompts: Any, sampling: SamplingParams, adapter: str | None = None) -> Any:
        request: GenerationRequest
        for request in prompts:
            text = self._text(request.token_ids)
            self.used.append((REFLECT in text, adapter, sampling.max_new_tokens))
        return super().generate(prompts, sampling, adapter)


def follower(reflection: str = "The next action is {best}.") -> Any:
    """A reflector that knows where the flag is (cell 5), and a policy that does what the reflection says."""

    def script(text: str, rng: Any) -> str:
        if REFLECT in text:
            cell = int(text.split("You are at ")[-1].split(".")[0])
            return reflection.format(best="right" if cell < 5 else "left")
        last = text.rsplit("<|im_start|>user", 1)[1]
        wanted = last.split("The next action is ")[1].split(".")[0] if "The next action is " in last else "left"
        labels = {line[:-3]: line[-1] for line in last.splitlines() if line[-3:-1] == ": "}
        return labels.get(wanted, "A")

    return script


def engine_of(script: Any = None, **changes: Any) -> RolloutEngine:
    return build_engine(config(**changes), Adapters(script or follower()))


def run(engine: RolloutEngine, start: int = 3, **more: Any) -> Dialogue:
    task = engine.environment.task("test", 0)
    task = task.model_copy(update={"public": {"start": start}, "privileged": {"flag": 5}})
    (rollout,) = engine.run([RolloutRequest(task, "d", "g", 0, 7, **more)], adapter="policy")
    return rollout.dialogue


# -- rollouts ------------------------------------------------------------------------------------------------------
def test_the_reflector_reads_the_state_without_actions_and_the_policy_reads_its_reflection() -> None:
    engine = engine_of(
        rollout={**config().rollout.model_dump(), "reflector": {"checkpoint": "x", "max_new_tokens": 60}}
    )
    dialogue = run(engine)
    backend: Any = engine.backend
    assert [t.reflection for t in dialogue.turns] == ["The next action is right."] * 2
    assert dialogue.stop_reason is StopReason.SOLVED
    assert backend.used == [(True, "reflector", 60), (False, "policy", 4)] * 2
    prompt_of_reflector, policy = backend.seen[2:4]
    assert "You are at 4.\n\n" + REFLECT in prompt_of_reflector and ": A" not in prompt_of_reflector
    _, _, listed = policy.partition("You are at 4.\n\nThe next action is right.\n\n")
    assert listed.partition("\n")[0].endswith(": A")


def test_a_reflector_without_checkpoint_is_the_base_model() -> None:
    engine = engine_of()
    run(engine)
    backend: Any = engine.backend
    assert backend.used[0] == (True, None, 100)


def test_both_kinds_of_batching_give_the_same_dialogue() -> None:
    static = engine_of(rollout={**config().rollout.model_dump(), "batching": "static"})
    assert run(static) == run(engine_of())


def test_a_stored_dialogue_continues_with_its_reflections() -> None:
    whole = run(engine_of())
    changed = whole.turns[0].model_copy(update={"reflection": "Stored."})
    continued = run(engine_of(), turns=(changed,))
    assert [t.reflection for t in continued.turns] == ["Stored.", "The next action is right."]


def test_prescribed_reflections_replace_the_reflector() -> None:
    engine = engine_of()
    dialogue = run(engine, reflections=("The next action is right.", ""), max_turns=3)
    backend: Any = engine.backend
    assert [t.reflection for t in dialogue.turns] == ["The next action is right.", "", ""]
    assert not any(reflects for reflects, *_ in backend.used)


def test_a_corrupted_reflection_argues_for_another_action_than_the_oracle() -> None:
    dialogue = run(engine_of(), corrupt_reflections=True)
    assert {t.reflection for t in dialogue.turns} == {"The next action is left."}
    assert dialogue.stop_reason is StopReason.ENDED


def test_a_prompt_that_is_too_long_for_a_reflection_ends_the_dialogue() -> None:
    engine = engine_of(rollout={**config().rollout.model_dump(), "max_seq_len": 200})
    assert run(engine).stop_reason is StopReason.CONTEXT_FULL


def test_taxi_argues_for_the_oracle_or_for_a_wrong_action() -> None:
    taxi = Taxi(Taxi.Config(size=3, goal="pickup"))
    for index in range(20):
        task = taxi.task("test", index)
        state = taxi.initial(task)
        best = taxi.oracle_action(task, state)
        assert taxi.reflection(task, state, best).endswith(f"The next action is {best}.")
        assert taxi.reflection(task, state, "dropoff") == "The passenger is here. The next action is dropoff."
        wrong = next(a for a in ("north", "south") if a != best)
        assert taxi.reflection(task, state, wrong) == f"The passenger is to the {wrong}. The next action is {wrong}."
    inside = state._replace(passenger=IN_TAXI)
    assert taxi.reflection(task, inside, taxi.oracle_action(task, inside)).startswith("The destination is ")


# -- configuration -------------------------------------------------------------------------------------------------
def test_a_reflector_needs_enumerated_actions_and_an_earlier_stage() -> None:
    rollout = config().rollout.model_dump()
    with pytest.raises(ConfigError, match=r"needs rollout\.prompting: enumerate"):
        config(rollout={**rollout, "prompting": "append"}, stages=[{"name": "a", "method": "rl2f", "steps": 1}])
    with pytest.raises(ConfigError, match="'rl' is not a stage that trains before all on-policy stages"):
        config(rollout={**rollout, "reflector": {"stage": "rl"}})
    reflector = {"name": "a", "method": "reflect_sft", "steps": 1, "group_size": 1}
    policy = {"name": "b", "method": "reflect_rl", "steps": 1}
    for start in ({}, {"init_from": "a"}):
        with pytest.raises(ConfigError, match="'b' would start from the weights of the reflector 'a'"):
            config(rollout={**rollout, "reflector": {"stage": "a"}}, stages=[reflector, policy | start])
    config(rollout={**rollout, "reflector": {"stage": "a"}}, stages=[reflector, {**policy, "init_from": "base"}])
    with pytest.raises(ConfigError, match="leave one out"):
        config(rollout={**rollout, "reflector": {"stage": "a", "checkpoint": "b"}})
    with pytest.raises(ConfigError, match="come from the dialogues under hints"):
        config(evaluation={"conditions": ["contentless", "reflection_dropped"]})


def test_conditions_without_a_reflector_are_skipped_with_a_message() -> None:
    without = config(rollout={**config().rollout.model_dump(), "reflector": None})
    assert set(skipped_conditions(without)) == set(REFLECTED)
    assert not skipped_conditions(config())


# -- evaluation ----------------------------------------------------------------------------------------------------
def evaluate(script: Any) -> dict[str, list[Dialogue]]:
    runner = EvaluationRunner(config(), Adapters(script))
    found: dict[str, list[Dialogue]] = {}
    for condition in ("hints", *REFLECTED):
        recorded = {"base": found["hints"]} if condition == "reflection_shuffled" else None
        found[condition] = runner.evaluate({"base": None}, condition, recorded)["base"]
    return found


def oracle_script(runner: EvaluationRunner) -> Any:
    """A reflector that knows the flag of each problem, by its start cell and seed of labels."""
    flags = {task.public["start"]: task.privileged["flag"] for task in runner.tasks}
    follow = follower()

    def script(text: str, rng: Any) -> str:
        if REFLECT not in text:
            return str(follow(text, rng))
        start = int(text.split("Find the flag. You are at ")[1].split(".")[0])
        cell = int(text.split("You are at ")[-1].split(".")[0])
        return f"The next action is {'right' if cell < flags[start] else 'left'}."

    return script


def test_shuffled_dropped_and_corrupted_reflections_are_paired_with_the_intact_ones() -> None:
    runner = EvaluationRunner(config(), Adapters(follower()))
    found = evaluate(oracle_script(runner))
    rates = {name: sum(d.solved for d in dialogues) / len(dialogues) for name, dialogues in found.items()}
    assert rates["hints"] > 0.5 > 0.1 > rates["reflection_corrupted"]  # one state has a single action
    assert {len(dialogues) for dialogues in found.values()} == {12}
    assert all(t.reflection == "" for d in found["reflection_dropped"] for t in d.turns)
    assert [d.task_id for d in found["hints"]] == [d.task_id for d in found["reflection_shuffled"]]
    for k, dialogue in enumerate(found["reflection_shuffled"]):
        source = [t.reflection for t in found["hints"][(k + 1) % 12].turns]
        assert [t.reflection for t in dialogue.turns] == [
            source[min(i, len(source) - 1)] for i in range(len(dialogue.turns))
        ]
    differences = effects(found, 9)
    assert list(differences) == REFLECTED
    assert differences["reflection_corrupted"].value == pytest.approx(rates["reflection_corrupted"] - rates["hints"])
    tasks = EvaluatedTasks(12, 1, keys={t.id: t.id for t in runner.tasks})
    report = build_report(runner.engine.environment, {"base": found}, 9, tasks)
    assert {(e.condition, e.against) for e in report.effects} == {(name, "hints") for name in REFLECTED}
    text = "\n".join(findings(report))
    assert (
        "With reflections that argue for wrong actions (base): −" in text and "(against hints)" in report.to_markdown()
    )
