"""Rewards, references, schedules, first adapters and scores that are not numbers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM
from two_tokens import set_logit, two_token_learner

from jobs.chat.interactive_task import InteractiveTask
from rl2f_core.config.curriculum import level_of
from rl2f_core.config.loading import parse_config
from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.dialogue.dataset_store import read_rows
from rl2f_core.dialogue.metrics.dialogues import compute_metrics
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.dialogue.rollout.leak_guard import LeakGuard
from rl2f_core.dialogue.rollout.transcript import rollout_from_text
from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.puzzles.secret_code.environment import SecretCode
from rl2f_core.environments.verifiers import server
from rl2f_core.environments.worlds.household.environment import Household
from rl2f_core.errors import AdapterError, ConfigError, DataError, RunError
from rl2f_core.leaks.base import LeakDetector, LeakQuery
from rl2f_core.learning.learner.kl import divergence
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.methods.base import StepContext
from rl2f_core.learning.methods.loss_spec import KLConfig, LossConfig
from rl2f_core.learning.methods.reflect_rl import ReflectRL
from rl2f_core.learning.methods.rl2f import RL2F
from rl2f_core.learning.methods.sdpo import SDPO
from rl2f_core.learning.methods.token_rewards import PPO
from rl2f_core.learning.training.collector import Collector
from rl2f_core.learning.training.curriculum import CurriculumTracker, tracker_for_stage
from rl2f_core.learning.training.preflight import PreflightReport, preflight
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.store.tiny import build
from rl2f_core.run.events import DialogueEvent, JsonlSink, MetricEvent, read_events
from rl2f_core.types import Dialogue, Group, LeakReport, StopReason, Task, TrainingSample, Verdict


# -- auto_explore: the end of an episode without an answer ----------------------------------------------------------
def explorer(text: str = "no command", max_turns: int = 8, **changes: Any) -> RolloutEngine:
    """A student of `auto_explore` that always replies with the same text."""
    rollout = {"max_turns": max_turns, "max_new_tokens": 40, "max_seq_len": 8192} | changes.pop("rollout", {})
    base = {"environment": "auto_explore", "teacher": "contentless", "reward": {"preset": "environment"}}
    stages = [{"name": "rl", "method": "rl2f", "steps": 1}]
    data = base | {"backend": "fake", "rollout": rollout, "stages": stages, "leak_detection": {"detectors": []}}
    return build_engine(parse_config(data | changes), FakeBackend(script=lambda prompt, rng: text))


def episode(engine: RolloutEngine, **more: Any) -> Dialogue:
    (rollout,) = engine.run([RolloutRequest(engine.environment.task("test", 0), "d", "g", 0, 7, **more)])
    return rollout.dialogue


def total(dialogue: Dialogue) -> float:
    return sum(turn.reward for turn in dialogue.turns)


@pytest.mark.parametrize(("turns", "reward"), [(8, -23.0), (15, -30.0)])
def test_an_episode_without_id_costs_the_end_reward(turns: int, reward: float) -> None:
    dialogue = episode(explorer(max_turns=turns))
    assert (dialogue.stop_reason, len(dialogue.turns), total(dialogue)) == (StopReason.EXHAUSTED, turns, reward)
    assert [turn.reward for turn in dialogue.turns] == [-1.0] * (turns - 1) + [-16.0]


def test_no_answer_is_worse_than_a_wrong_answer_after_as_many_commands() -> None:
    engine = explorer(max_turns=3)
    task = engine.environment.task("test", 0)
    wrong = task.model_copy(update={"privileged": {"answer": "another/file.py"}})
    commands = [wrap_answer(text) for text in engine.environment.plan(task)]  # type: ignore[attr-defined]
    request = RolloutRequest(wrong, "d", "g", 0, 7)
    named, silent = (rollout_from_text(engine, request, texts).dialogue for texts in (commands, commands[:-1]))
    assert named.stop_reason is StopReason.ENDED and silent.stop_reason is StopReason.EXHAUSTED
    assert total(named) == -len(commands) - 15 and total(silent) == -len(commands) + 1 - 15


def test_an_episode_that_fills_the_context_costs_the_end_reward() -> None:
    dialogue = episode(explorer(max_turns=60, rollout={"max_seq_len": 700}))
    assert dialogue.stop_reason is StopReason.CONTEXT_FULL and total(dialogue) == -len(dialogue.turns) - 15


def test_the_end_reward_has_the_weight_of_the_environment() -> None:
    assert total(episode(explorer(reward={"preset": "environment", "environment_weight": 0.1}))) == pytest.approx(-2.3)


def test_a_continued_episode_pays_the_end_reward_once() -> None:
    first = episode(explorer(max_turns=3))
    assert total(first) == -18
    continued = episode(explorer(max_turns=8), turns=first.turns)
    assert [turn.reward for turn in continued.turns] == [-1.0] * 7 + [-16.0]


def test_a_mixture_charges_the_end_reward_of_its_part() -> None:
    parts = [{"environment": {"type": "auto_explore", "depth": depth}, "name": f"d{depth}"} for depth in (1, 2)]
    assert total(episode(explorer(environment={"type": "mixture", "environments": parts}))) == -23


def test_an_interactive_task_that_a_person_ends_pays_the_end_reward() -> None:
    engine = explorer(max_turns=2)
    task = engine.environment.task("test", 0)
    played = InteractiveTask({"environment": {"type": "auto_explore"}, "reward": {"preset": "environment"}}, task)
    turns = episode(engine, turns=()).turns[:1]
    leaf: Any = SimpleNamespace(chat_id=1, id=2, checkpoint="base")
    event = played.dialogue_event(leaf, turns, StopReason.EXHAUSTED, index=0, seed=0, edited=False)
    assert total(event.dialogue) == -16


def test_a_taskset_for_verifiers_charges_the_end_reward() -> None:
    reply = server.verify(explorer().environment, "test", 0, ["no command"] * 8)
    assert (reply["done"], reply["reward"]) == (False, -23)


@pytest.mark.parametrize(
    ("costs", "attempt", "reward"),
    [(False, wrap_answer("ls"), -1), (True, wrap_answer("ls"), -3), (False, "hm", -1), (True, "hm", -2)],
    ids=["error, off by default", "error", "warning, off by default", "warning"],
)
def test_the_costs_of_error_and_warning_are_an_option(costs: bool, attempt: str, reward: float) -> None:
    settings = {"type": "auto_explore"} | ({"invalid_costs": True} if costs else {})
    dialogue = episode(explorer(attempt, max_turns=2, environment=settings))
    assert [turn.reward for turn in dialogue.turns] == [reward, reward - 15]


def test_an_invalid_action_in_a_household_is_not_cheaper_than_a_valid_one() -> None:
    environment = Household(Household.Config(step_reward=-0.1))
    task = environment.task("test", 0)
    assert environment.verify(task, "no action").reward == -0.1


# -- references that share a trained module --------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["full_logits", "topk_logits"])
@pytest.mark.parametrize("kind", ["ema", "base"])
def test_the_reference_has_its_own_output_layer(tiny: Path, kind: str, form: str) -> None:
    learner, options, stage = two_token_learner(tiny, kind, form, log(3))  # the reference has (3/4, 1/4)
    learner.begin_stage(options, stage)
    set_logit(learner, 0.0)  # the policy has (1/2, 1/2)
    sample = TrainingSample([40, 100], [False, True], [0.0] * 2, [0.0] * 2, [0.0] * 2, [0.0] * 2, [0.0, 1.0])
    expected = 0.5 * log(0.5 / 0.75) + 0.5 * log(0.5 / 0.25)
    assert learner.update([sample], options, stage.resolve(0, 1.0))["loss"] == pytest.approx(expected, abs=1e-4)
    if kind == "ema":  # the gradient moves the policy's logit up, and the reference follows at its rate
        embeddings = next(name for name in learner.parameters if "embed" in name)
        now, reference = float(learner.parameters[embeddings][100, 0].detach()), learner.reference
        assert reference is not None and now > 0
        start = log(3) / learner.parameters[embeddings].shape[1] ** 0.5
        assert float(reference[embeddings][100, 0]) == pytest.approx(0.95 * start + 0.05 * now)


def test_the_base_of_full_finetuning_has_its_own_output_layer(tiny: Path) -> None:
    """The stage's `ref_model: base` under an untied output layer, beside two plain forward passes."""
    folder = tiny.parent / "untied"
    model = AutoModelForCausalLM.from_pretrained(tiny)
    model.config.tie_word_embeddings = False
    torch.manual_seed(5)
    model.lm_head.weight = torch.nn.Parameter(0.3 * torch.randn_like(model.lm_head.weight))
    model.save_pretrained(folder)
    learner = Learner(folder, LoraConfig(full_finetuning=True), dtype=torch.float32, device=torch.device("cpu"),
                      banned=[], pad=2, seed=0)  # fmt: skip
    kl = KLConfig("full_logits", alpha=0.5, reference="base")
    options, stage = LossConfig(kl_coef=1.0, kl=kl), StageConfig(name="s", method="sdpo", steps=9, ref_model="base")
    learner.begin_stage(options, stage)
    with torch.no_grad():
        for parameter in learner.parameters.values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    tokens = torch.tensor([[40, 41, 42, 43]])
    base = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logps = [m(tokens).logits[0, 1:-1].log_softmax(-1) for m in (learner.model.get_base_model(), base)]
    weights = [0.0, 0.0, 1.0, 1.0]
    sample = TrainingSample(tokens[0].tolist(), [False] * 2 + [True] * 2, *[[0.0] * 4] * 4, weights)
    loss = learner.update([sample], options, stage.resolve(0, 1.0))["loss"]
    assert loss == pytest.approx(float(divergence(*logps, 0.5).mean()), rel=1e-4) and loss > 0.01


# -- schedules --------------------------------------------------------------------------------------------------------
POINTS = [{"step": 0, "value": 2e-4}, {"step": 4, "value": 1e-4}, {"step": 8, "value": 5e-5}]


@pytest.mark.parametrize(
    ("learning_rate", "factors"),
    [
        (POINTS, {0: 1, 3: 1, 4: 0.5, 8: 0.25}),
        ({"points": POINTS, "interpolation": "linear"}, {0: 1, 2: 0.75, 4: 0.5, 6: 0.375, 8: 0.25}),
        ([{"step": 0, "value": 5e-5}, {"step": 4, "value": 2e-4}], {0: 0.25, 4: 1}),
    ],
    ids=["points", "interpolated", "rising"],
)
def test_the_rate_of_the_value_head_follows_points(tiny: Path, learning_rate: Any, factors: dict[int, float]) -> None:
    method = PPO.Config(value_learning_rate=1e-2)
    stage = StageConfig.model_validate(
        {"name": "s", "method": method, "steps": 10, "learning_rate": learning_rate, "group_size": 1}
    )
    options = PPO(method).loss_options()
    lora = LoraConfig(rank=2, alpha=4)
    learner = Learner(tiny, lora, dtype=torch.float32, device=torch.device("cpu"), banned=[], pad=2, seed=0)
    learner.begin_stage(options, stage)
    for step, factor in factors.items():
        sample = TrainingSample([40, 41], [False, True], [0.0, -5.0], [0.0, 1.0], [0.0, 1.0], [0.0] * 2, [0.0] * 2)
        learner.update([sample], options, stage.resolve(step, 1.0))
        rates = [group["lr"] for group in learner.optimizer.param_groups]
        assert rates == pytest.approx([2e-4 * factor, 1e-2 * factor])


def test_a_success_is_replayed_at_the_level_of_the_curriculum_not_of_the_first_group() -> None:
    method = ReflectRL(ReflectRL.Config(replay_per_step=5))
    stage = {
        "name": "rl", "method": {"type": "reflect_rl", "replay_per_step": 5}, "steps": 40, "tasks_per_step": 4,
        "group_size": 4, "curriculum": {
            "levels": [{"settings": {"depth": 1}, "steps": 1}, {}], "replay_fraction": 0.5,
        },
    }  # fmt: skip
    config = parse_config({
        "environment": {"type": "auto_explore", "depth": 2, "breadth": 2}, "teacher": "contentless", "backend": "fake",
        "rollout": {"max_turns": 8, "max_new_tokens": 4, "max_seq_len": 4096, "prompting": "enumerate"},
        "reward": {"preset": "environment"}, "stages": [stage], "leak_detection": {"detectors": []},
    })  # fmt: skip
    engine = build_engine(config, FakeBackend())
    curriculum = CurriculumTracker(config.stages[0], [
        build_engine(config.model_copy(update={"environment": level}), engine.backend)
        for level in config.stages[0].curriculum.environments(config.environment)  # type: ignore[union-attr]
    ], 0)  # fmt: skip
    curriculum.level = 1
    collector = Collector(engine, config.stages[0], seed=0, curriculum=curriculum)
    method._successes = [{"level": level, "id": f"{level}", "sequences": []} for level in (1, 2)]
    firsts = set()
    for step in range(6):
        successes = list(method._successes)
        groups = method.collect(collector, collector.resolve(step))
        firsts.add(level_of(groups[0].task.id))
        assert method._replayed and {success["level"] for success in method._replayed} == {2}
        method._successes = successes
    assert firsts == {1, 2}


def test_the_reference_prompt_of_sdpo_has_the_system_message_of_its_level() -> None:
    levels = [{"settings": {"length": 2}, "steps": 1}, {"settings": {"length": 3}}]
    data = {
        "environment": {"type": "secret_code", "length": 3, "letters": 2}, "backend": "fake",
        "rollout": {"max_turns": 2, "max_new_tokens": 40, "max_seq_len": 2000},
        "stages": [{"name": "s", "method": "sdpo", "steps": 2, "curriculum": {"levels": levels}}],
    }  # fmt: skip
    config = parse_config(data)
    engine = build_engine(config, FakeBackend(script=lambda prompt, rng: wrap_answer("A A")))
    curriculum = tracker_for_stage(config, config.stages[0], engine)
    assert curriculum is not None
    easy, task = curriculum.task(0, 0, 0, 0)
    (rollout,) = easy.run([RolloutRequest(task, "d", "g", 0, 7)])
    method = SDPO(SDPO.Config(peer_solutions="none"))
    method.begin_step(StepContext.of(engine, 0, 2, curriculum.engine_of))
    prompt = engine.backend.tokenizer.decode(method.reference_prompt(Group(task, (rollout,)), rollout))
    assert wrap_answer("? ?") in prompt and wrap_answer("? ? ?") not in prompt


def test_an_interpolated_group_size_is_checked_at_every_step() -> None:
    sizes = {"points": [{"step": 0, "value": 4}, {"step": 4, "value": 8}], "interpolation": "linear"}
    stage = {"name": "s", "method": {"type": "rltf_grpo", "branches": 2}, "steps": 6, "group_size": sizes}
    rollout = {"prompting": "reprompt", "max_turns": 2}
    with pytest.raises(ConfigError, match="group_size 5 with 2 dialogues per first attempt"):
        parse_config({"environment": "guess_number", "rollout": rollout, "stages": [stage]})


# -- the first adapter ------------------------------------------------------------------------------------------------
PEFT_LORA: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}


def first_adapter(tiny: Path, folder: Path, **changes: Any) -> Path:
    """An adapter that PEFT wrote, whose B is not 0."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny), peft.LoraConfig(**PEFT_LORA | changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    model.save_pretrained(folder)
    return folder


def start_from(base: Path, adapter: Path) -> Learner:
    """A learner with rank 4, alpha 8 and the targets of `PEFT_LORA` that starts with an adapter."""
    lora = LoraConfig(rank=4, alpha=8, target_modules=("q_proj", "v_proj"))
    learner = Learner(base, lora, dtype=torch.float32, device=torch.device("cpu"), banned=[], pad=2, seed=0)
    learner.load_adapter(adapter)
    return learner


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("use_rslora", {"use_rslora": True}),
        ("lora_alpha", {"lora_alpha": 16}),
        ("alpha_pattern", {"alpha_pattern": {"v_proj": 32}}),
        ("rank_pattern", {"rank_pattern": {"v_proj": 4}, "r": 4}),
        ("use_dora", {"use_dora": True}),
        ("lora_bias", {"lora_bias": True}),
        ("bias", {"bias": "lora_only"}),
        ("modules_to_save", {"modules_to_save": ["norm"]}),
        ("trainable_token_indices", {"trainable_token_indices": [40]}),
        ("init_lora_weights", {"init_lora_weights": "pissa"}),
        ("init_lora_weights", {"init_lora_weights": "pissa_niter_4"}),
        ("init_lora_weights", {"init_lora_weights": "olora"}),
        ("r", {"r": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_a_first_adapter_with_another_meaning_is_refused_by_the_key(
    tiny: Path, tmp_path: Path, key: str, changes: dict[str, Any]
) -> None:
    adapter = first_adapter(tiny, tmp_path / "adapter", **changes)
    with pytest.raises(AdapterError, match=rf"\b{key}\b"):
        start_from(tiny, adapter)


@pytest.fixture(scope="module")
def plain_adapter(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter with the settings of `PEFT_LORA`, to be copied."""
    return first_adapter(tiny, tmp_path_factory.mktemp("plain") / "adapter")


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [{"init_lora_weights": "corda"}, {"init_lora_weights": "loftq"}, {"init_lora_weights": "lora_ga"},
     {"fan_in_fan_out": True}, {"target_parameters": ["x"]}, {"layer_replication": [[0, 2]]}, {"use_qalora": True},
     {"alora_invocation_tokens": [40]}, {"a_later_setting": True}],
    ids=lambda setting: "-".join(map(str, setting.items())),
)  # fmt: skip
def test_the_setting_of_a_first_adapter_that_changes_its_formula_is_named(
    tiny: Path, plain_adapter: Path, tmp_path: Path, setting: dict[str, Any]
) -> None:
    adapter = shutil.copytree(plain_adapter, tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | setting))
    with pytest.raises(AdapterError, match=next(iter(setting))):
        start_from(tiny, adapter)


def test_a_first_adapter_of_another_base_of_the_same_shape_is_refused(tiny: Path, tmp_path: Path) -> None:
    build(tmp_path / "other", seed=1)
    adapter = first_adapter(tmp_path / "other", tmp_path / "adapter")
    with pytest.raises(AdapterError, match="base_model_name_or_path"):
        start_from(tiny, adapter)


# -- numbers that are not finite --------------------------------------------------------------------------------------
NAN, INF = float("nan"), float("inf")


class Broken(SecretCode):
    """A verifier one of whose numbers is not finite, after attempts with an A."""

    broken: dict[str, float] = {}  # noqa: RUF012

    def verify(self, task: Task, attempt: str) -> Verdict:
        numbers = {"score": 0.5, "reward": 0.5, "distance": 0.5} | (self.broken if "A" in attempt else {})
        return Verdict(correct=False, parsed=attempt, well_formed=True, **numbers)


def broken_engine(numbers: dict[str, float], script: Any = lambda prompt, rng: "A") -> RolloutEngine:
    config = parse_config({
        "environment": "secret_code", "backend": "fake", "teacher": "contentless",
        "rollout": {"max_turns": 2, "max_new_tokens": 20, "max_seq_len": 2000}, "reward": {"progress_weight": 0.5},
        "stages": [{"name": "rl", "method": "rl2f", "steps": 1}], "leak_detection": {"detectors": []},
    })  # fmt: skip
    kind = type("Broken", (Broken,), {"broken": numbers})
    return replace(build_engine(config, FakeBackend(script=script)), environment=kind(SecretCode.Config()))


@pytest.mark.parametrize(
    ("field", "value"),
    [("score", NAN), ("score", INF), ("reward", NAN), ("reward", -INF), ("distance", NAN)],
    ids=lambda value: str(value),
)
def test_a_number_that_is_not_finite_is_a_failed_verifier(tmp_path: Path, field: str, value: float) -> None:
    engine = broken_engine({field: value})
    task = engine.environment.task("test", 0)
    (rollout,) = engine.run([RolloutRequest(task, "d", "g", 0, 7)])
    dialogue = rollout.dialogue
    assert dialogue.stop_reason is StopReason.FAILED and not dialogue.trainable
    assert f"{field} is {value}" in (dialogue.error or "")
    JsonlSink(tmp_path / "events.jsonl").emit([DialogueEvent.of("train", "rl", 1, task, dialogue)])
    (event,) = read_events(tmp_path / "events.jsonl")
    assert isinstance(event, DialogueEvent) and event.dialogue == dialogue
    assert compute_metrics([dialogue], 2).dialogues == 0


def preflight_of(script: Any) -> PreflightReport:
    stage = {"name": "rl", "method": "rl2f", "steps": 1}
    data = {"environment": "secret_code", "backend": "fake", "stages": [stage], "teacher": "contentless"}
    config = parse_config(data | {"preflight": {"num_tasks": 8, "samples_per_task": 4}})
    engine, method = broken_engine({"score": NAN}, script), RL2F(config.stages[0].method)  # type: ignore[arg-type]
    return preflight(engine, config, config.stages[0], method)[0]


def test_the_preflight_names_the_failed_verifier_instead_of_other_advice() -> None:
    report = preflight_of(lambda prompt, rng: rng.choice("ABBBBBB"))  # no dialogue is solved, and many fail
    assert 4 < report.failed < 32 and report.parsable.value == 1
    assert report.reason == f"{report.failed} of 32 dialogues ended in an error." and "score is nan" in report.fix
    assert f"! {report.failed} of 32 dialogues ended in an error" in report.to_text()
    whole = preflight_of(lambda prompt, rng: "A")
    assert whole.reason == "All 32 dialogues ended in an error." and "score is nan" in whole.fix


@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
def test_a_loss_without_a_number_names_the_dialogue_and_not_the_learning_rate(tiny: Path, value: float) -> None:
    lora = LoraConfig(rank=2, alpha=4)
    learner = Learner(tiny, lora, dtype=torch.float32, device=torch.device("cpu"), banned=[], pad=2, seed=0)
    sample = TrainingSample(
        [40, 41], [False, True], [0.0, -5.0], [0.0, value], [0.0, 1.0], [0.0] * 2, [0.0] * 2, dialogue="rl/1/0"
    )
    stage = StageConfig(name="s", method="rl2f", steps=1)
    with pytest.raises(RunError, match="advantages of dialogue 'rl/1/0'") as error:
        learner.update([sample], LossConfig(), stage.resolve(0, 1.0))
    assert "learning_rate" not in str(error.value)


# -- datasets that state verdicts -----------------------------------------------------------------------------------
RIGHT, WRONG = {"correct": True}, {"correct": False}


@pytest.mark.parametrize(("stated", "taken"), [
    ({"verdicts": [WRONG], "solved_at": 0}, False), ({"verdicts": [RIGHT, WRONG], "solved_at": 1}, False),
    ({"solved_at": 0}, False), (WRONG, False), ({"verdicts": [WRONG, RIGHT], "solved_at": 2}, True),
    ({"verdicts": "good", "solved_at": 1}, True), ({}, True),
], ids=["unsolved", "solved earlier", "no turn", "one verdict", "solved", "other column", "no verdict"])  # fmt: skip
def test_the_last_attempt_of_a_row_is_no_gold_answer_if_it_is_incorrect(
    stated: dict[str, Any], taken: bool, tmp_path: Path
) -> None:
    environment = SecretCode(SecretCode.Config())
    task = environment.task("train", 0)
    texts = {"user": environment.prompt(task.public), "assistant": wrap_answer(environment.gold_answer(task))}
    row = {"messages": [{"role": role, "content": text} for role, text in texts.items()], **stated}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    if taken:
        assert len(read_rows(path, environment)) == 1
    else:
        with pytest.raises(DataError, match=r"last attempt of a row is incorrect .*rows.jsonl, line 1.*prompt_compl"):
            read_rows(path, environment)


def test_a_metric_without_a_number_does_not_hide_those_of_its_step(tmp_path: Path) -> None:
    event = MetricEvent(id="m", stage="rl", step=1, values={"reward": 0.5, "ratio": NAN, "other": INF})
    JsonlSink(tmp_path / "events.jsonl").emit([event])
    (stored,) = read_events(tmp_path / "events.jsonl")
    assert isinstance(stored, MetricEvent) and stored.values == {"reward": 0.5}


@pytest.mark.parametrize("field", ["answer_fraction", "logprob_gain", "leak_probability"])
def test_a_judge_without_a_number_fails_its_dialogue_by_name(field: str) -> None:
    class Judge(LeakDetector):
        def check(self, query: LeakQuery) -> LeakReport:
            return LeakReport(leaked=False, **{field: NAN})

    engine = broken_engine({}, lambda prompt, rng: "B")
    detector: Any = Judge(SimpleNamespace(type="judge"), engine.environment)  # type: ignore[arg-type]
    engine = replace(engine, guard=LeakGuard([detector], "flag", 0, engine.environment))
    (rollout,) = engine.run([RolloutRequest(engine.environment.task("test", 0), "d", "g", 0, 7)])
    assert rollout.dialogue.stop_reason is StopReason.FAILED
    assert f"{field} is nan" in (rollout.dialogue.error or "")
