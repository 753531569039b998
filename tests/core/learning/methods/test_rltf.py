"""The RLTF family on a hand-made group: advantages, which tokens carry which weight, and that every option counts.

Four dialogues under fresh prompts; r is the reward of a turn, the letters are tokens:

    dialogue   r_0   r_1      first stream x_0 · y_0      second stream x_1 · y_1
    0          1     –        XX ab                       –
    1          0     1        XX cd                       PPP ef
    2          0     0        XX gh                       PPP ij
    3          0     1        XX kl                       PPP mn

The mean of r_0 is ¼; the mean of r_1 over the three that got there is ⅔.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from rl2f_core import registry
from rl2f_core.config.model import LoraConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.dialogue.rollout.build import build_engine, build_teacher
from rl2f_core.dialogue.teachers.base import FeedbackRequest
from rl2f_core.dialogue.teachers.self_critique import SelfCritiqueTeacher
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.methods.aux_loss import AuxLossConfig, is_trainable_hint
from rl2f_core.learning.methods.base import StepContext
from rl2f_core.learning.methods.rltf import revision_advantages
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.tokenizer import ByteTokenizer
from rl2f_core.types import (
    Dialogue,
    Group,
    Hint,
    LeakReport,
    RewardTerm,
    Rollout,
    StopReason,
    TokenSequence,
    TrainingSample,
    Turn,
    Verdict,
)

REWARDS = [[1.0], [0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
X0, X1 = (60, 61), (62, 63, 64)
SAID = {(0, 0): (97, 98), (1, 0): (99, 100), (1, 1): (101, 102), (2, 0): (103, 104), (2, 1): (105, 106),
        (3, 0): (107, 108), (3, 1): (109, 110)}  # fmt: skip
CONFIG: dict[str, Any] = {
    "backend": "fake",
    "environment": {"type": "guess_number", "size": 16, "low": 1},
    "rollout": {"max_turns": 2, "max_new_tokens": 64, "max_seq_len": 4096, "prompting": "reprompt"},
}


def config(method: Any, **changes: Any) -> RunConfig:
    stage = {"name": "rl", "method": method, "steps": 11}
    return RunConfig.model_validate({**CONFIG, "stages": [stage], **changes})


ENGINE = build_engine(config("rltf_grpo"), FakeBackend())
TASK = ENGINE.environment.task("train", 0)


def dialogue(index: int, rewards: list[float], hint: Hint | None = None) -> Rollout:
    hint = hint or Hint(text="Too low.", teacher="scripted")
    turns, streams = [], []
    for k, reward in enumerate(rewards):
        said, opening = SAID[index, k], X1 if k else X0
        verdict = Verdict(correct=reward == 1, score=reward)
        last = k + 1 == len(rewards)
        turns.append(
            Turn(
                index=k,
                attempt=bytes(said).decode(),
                token_ids=said,
                verdict=verdict,
                rewards=(RewardTerm(name="correct", score=reward),),
                hint=None if last else hint,
            )
        )
        n = len(opening)
        streams.append(TokenSequence((*opening, *said), (False,) * n + (True,) * 2, (0.0,) * n + (-1.0, -2.0),
                                   (k - 1,) * n + (k, k)))  # fmt: skip
    stop = StopReason.SOLVED if rewards[-1] == 1 else StopReason.EXHAUSTED
    held = Dialogue(id=f"g/{index}", task_id=TASK.id, group="g", index=index, turns=tuple(turns), stop_reason=stop)
    return Rollout(held, tuple(streams))


GROUP = Group(TASK, tuple(dialogue(i, rewards) for i, rewards in enumerate(REWARDS)))


def method_of(name: str, step: int = 5, steps: int = 11, context: int = 4096, **options: Any) -> Any:
    held: Any = registry.get("method", name)
    method = held(held.Config(**options))
    method.begin_step(StepContext(ENGINE.renderer, context, step, steps, lambda task: ENGINE))
    return method


def further(name: str, group: Group = GROUP, **options: Any) -> list[TrainingSample]:
    """The rows beside those of `rltf_grpo`."""
    base = method_of("rltf_grpo").samples(GROUP) if name != "rl2f_self" else method_of("rl2f", gamma=0.7).samples(GROUP)
    rows = method_of(name, **options).samples(group)
    assert rows[: len(base)] == base
    return rows[len(base) :]


# -- rltf_grpo ---------------------------------------------------------------------------------------------------
def test_grpo_gives_each_turn_its_row_and_its_return_to_go():
    method = method_of("rltf_grpo")
    # R_0 = r_0 + 0.1·r_1: 1, 0.1, 0, 0.1, mean 0.3; R_1: 1, 0, 1, mean ⅔
    a = [[0.7], [-0.2, 1 / 3], [-0.3, -2 / 3], [-0.2, 1 / 3]]
    assert method.advantages(GROUP) == [pytest.approx(turns) for turns in a]
    rows = method.samples(GROUP)
    assert [(row.dialogue, tuple(row.token_ids)) for row in rows] == [
        (f"g/{i}", (*(X1 if k else X0), *SAID[i, k])) for i, turns in enumerate(a) for k in range(len(turns))
    ]
    for row, advantage in zip(rows, [x for turns in a for x in turns], strict=True):
        n = len(row.token_ids) - 2
        assert list(row.rl_weights) == [0] * n + [1, 1] and list(row.logprobs) == [0] * n + [-1, -2]
        assert list(row.advantages) == pytest.approx([0] * n + [advantage] * 2)
        assert row.policy_loss == "ppo" and row.min_logprob is None and not row.off_context and not any(row.ce_weights)


# -- rltf_sd -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("baseline", "expected"),
    [("first", [[], [0.75], [-0.25], [0.75]]), ("second", [[], [1 / 3], [-2 / 3], [1 / 3]]),
     ("none", [[], [1.0], [0.0], [1.0]])],
)  # fmt: skip
def test_the_advantage_of_a_revision_by_hand(baseline: Any, expected: list[list[float]]):
    assert revision_advantages(REWARDS, baseline) == [pytest.approx(row) for row in expected]
    assert revision_advantages([], baseline) == []


def test_where_every_revision_is_right_the_first_baseline_still_teaches_and_the_second_does_not():
    solved = [[0.0, 1.0]] * 3
    assert revision_advantages(solved, "first") == [[1.0]] * 3 and revision_advantages(solved, "second") == [[0.0]] * 3
    group = Group(TASK, tuple(dialogue(i, [0.0, 1.0]) for i in (1, 2, 3)))
    for method in (method_of("rltf_grpo"), method_of("rltf_sd", sd_baseline="second")):
        assert [row.has_gradient for row in method.samples(group)] == [False] * 6
    rows = method_of("rltf_sd").samples(group)
    # the policy's own six rows stand beside them, so that the coefficient weighs them among the others
    assert [row.has_gradient for row in rows] == [False] * 6 + [True] * 3


def test_a_revision_is_trained_as_an_answer_to_the_bare_question_token_for_token():
    rows = further("rltf_sd", rl_coef=0.25)
    assert [tuple(row.token_ids) for row in rows] == [(*X0, *SAID[i, 1]) for i in (1, 2, 3)]
    for row, advantage in zip(rows, (0.75, -0.25, 0.75), strict=True):
        assert list(row.rl_weights) == [0, 0, 0.25, 0.25] and list(row.advantages) == [0, 0, advantage, advantage]
        assert list(row.policy_mask) == [False, False, True, True] and list(row.logprobs) == [0, 0, -1, -2]
        assert (row.policy_loss, row.min_logprob, row.off_context) == ("awr", -5.0, True)
        assert not any(row.ce_weights) and not any(row.kl_weights)


@pytest.mark.parametrize("weighting", ["awr", "importance_sampling", "ppo", "cispo"])
def test_mask_coefficient_and_baseline_reach_every_weighting(weighting: str):
    for baseline, advantage in (("first", 0.75), ("second", 1 / 3), ("none", 1.0)):
        options = {"policy_loss": weighting, "sd_baseline": baseline, "rl_coef": 0.3, "min_logprob": -3.0}
        row = further("rltf_sd", **options)[0]
        assert (row.policy_loss, row.min_logprob, row.rl_weights[-1]) == (weighting, -3.0, 0.3)
        assert row.advantages[-1] == pytest.approx(advantage)
        assert further("rltf_sd", **{**options, "min_logprob": None})[0].min_logprob is None
        ramp = {**options, "coef_ramp": "linear"}
        assert [further("rltf_sd", step=s, **ramp)[0].rl_weights[-1] for s in (2, 5, 10)] == pytest.approx(
            [0.06, 0.15, 0.3]
        )
        assert further("rltf_sd", step=4, start_step=5, **options) == []
        assert len(further("rltf_sd", step=5, start_step=5, **options)) == (2 if baseline == "none" else 3)


def test_coefficients_by_step():
    def ramped(ramp: Literal["constant", "linear"], start: int) -> AuxLossConfig:
        return AuxLossConfig(coef_ramp=ramp, start_step=start)

    assert [ramped("constant", 3).weight(0.1, s, 10) for s in (0, 2, 3, 9)] == [0, 0, 0.1, 0.1]
    assert [ramped("linear", 0).weight(0.1, s, 11) for s in (0, 5, 10)] == pytest.approx([0, 0.05, 0.1])
    # from 0 at step 4 to the whole at the last step, 8
    assert [ramped("linear", 4).weight(0.2, s, 9) for s in (3, 4, 6, 8)] == pytest.approx([0, 0, 0.1, 0.2])
    assert ramped("linear", 8).weight(0.2, 8, 9) == 0.2 == ramped("linear", 0).weight(0.2, 0, 1)


# -- rltf_fm, rl2f_self, sft_correct --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["rltf_fm", "rl2f_self"])
def test_a_critique_is_learnt_under_the_very_tokens_that_self_critique_is_asked_with(name: str, monkeypatch: Any):
    rows = further(name)
    assert len(rows) == 3
    backend = ENGINE.backend
    asked: list[tuple[int, ...]] = []
    generate = backend.generate

    def recorded(prompts: Any, *rest: Any) -> Any:
        asked.extend(prompt.token_ids for prompt in prompts)
        return generate(prompts, *rest)

    monkeypatch.setattr(backend, "generate", recorded)
    teacher = build_teacher(SelfCritiqueTeacher.Config(), ENGINE)
    first = GROUP.rollouts[1].dialogue.turns[0].model_copy(update={"hint": None})
    teacher.feedback([FeedbackRequest(TASK, (first,), 0)])
    words = (*b"Too low.", ByteTokenizer.eos_token_id)
    assert tuple(rows[0].token_ids) == (*asked[0], *words)
    n = len(asked[0])
    assert (
        list(rows[0].ce_weights) == [0.0] * n + [1.0] * len(words)
        and not any(rows[0].rl_weights)
        and not any(rows[0].policy_mask)
    )


@pytest.mark.parametrize("name", ["rltf_fm", "rl2f_self"])
def test_nothing_privileged_stands_before_a_critique(name: str):
    task = TASK.model_copy(update={"privileged": {"number": "SECRET"}})
    rollouts = []
    for rollout in GROUP.rollouts:
        verdict = Verdict(correct=False, score=0, detail="SECRET")
        told = [turn.model_copy(update={"verdict": verdict}) for turn in rollout.dialogue.turns]
        rollouts.append(Rollout(rollout.dialogue.model_copy(update={"turns": tuple(told)}), rollout.sequences))
    rows = further(name, Group(task, tuple(rollouts)))
    texts = [ENGINE.backend._text(row.token_ids) for row in rows]  # type: ignore[attr-defined]
    assert len(texts) == 3 and all("SECRET" not in text and "Too low." in text for text in texts)


LEAK = LeakReport(leaked=True, detector="exact")


@pytest.mark.parametrize(
    "hint",
    [
        Hint(text="That is not correct. Try again.", teacher="llm", error="timed out"),
        Hint(text="It is 9.", teacher="llm", leak=LEAK),
        Hint(text="It is […].", teacher="llm", leak=LEAK, feedback="It is 9."),
        Hint(text=" ", teacher="llm"),
        Hint(text="Too low.", teacher="shuffled", source_task="another"),
    ],
    ids=["stand-in", "leak", "redacted", "empty", "of another task"],
)
def test_what_is_nobodys_critique_of_this_attempt_is_not_learnt(hint: Hint):
    assert not is_trainable_hint(hint) and not is_trainable_hint(None)
    assert is_trainable_hint(Hint(text="Too low.", teacher="llm", leak=LeakReport(leaked=False)))
    group = Group(TASK, tuple(dialogue(i, r, hint) for i, r in enumerate(REWARDS)))
    assert further("rltf_fm", group) == [] == further("rl2f_self", group)


def test_a_critique_that_could_not_be_asked_for_is_left_out():
    whole = max(len(row.token_ids) for row in further("rltf_fm"))
    assert len(further("rltf_fm", context=whole)) == 3 and further("rltf_fm", context=whole - 1) == []


def test_only_right_revisions_are_imitated_under_the_bare_question():
    rows = further("sft_correct")
    assert [tuple(row.token_ids) for row in rows] == [(*X0, *SAID[i, 1]) for i in (1, 3)]
    assert all(
        list(row.ce_weights) == [0, 0, 1, 1] and not any(row.rl_weights) and not any(row.policy_mask) for row in rows
    )


@pytest.mark.parametrize("name", ["rltf_fm", "rl2f_self", "sft_correct"])
def test_the_coefficient_of_an_imitation_follows_its_schedule(name: str):
    ramp = {"ce_coef": 0.4, "coef_ramp": "linear", "start_step": 5}
    found = [method_of(name, step=s, **ramp) for s in (4, 5, 6, 10)]
    assert [m.loss_options().ce_coef for m in found] == pytest.approx([0, 0, 0.08, 0.4])
    assert [any(any(row.ce_weights) for row in m.samples(GROUP)) for m in found] == [False, False, True, True]
    with pytest.raises(RunError, match="no step context"):
        registry.get("method", name)(registry.get("method", name).Config()).loss_options()  # type: ignore


# -- every option reaches the loss -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def losses(tiny: Path) -> Any:
    learner = Learner(tiny, LoraConfig(rank=4, alpha=8), dtype=torch.float32, device=torch.device("cpu"), banned=[0, 1],
                      pad=2, seed=1)  # fmt: skip
    stage = StageConfig(name="s", method="sft", steps=11, learning_rate=1e-12)

    def update(name: str, step: int = 5, temperature: float = 1.0, **options: Any) -> dict[str, float]:
        method = method_of(name, step, **options)
        return learner.update(method.samples(GROUP), method.loss_options(), stage.resolve(step, temperature))

    def value(name: str, step: int = 5, **options: Any) -> tuple[float, float]:
        """Loss and norm of the gradient on the hand-made group, nothing of the clip's doing."""
        found = update(name, step, **options)
        return round(found["loss"], 6), round(found["grad_norm"], 6)

    value.update = update  # type: ignore[attr-defined]
    return value


@pytest.mark.parametrize("name", ["rltf_fm", pytest.param("rl2f_self", marks=pytest.mark.slow), "sft_correct"])
def test_cross_entropy_uses_temperature_1_and_reinforcement_that_of_sampling(losses: Any, name: str):
    plain = "rl2f" if name == "rl2f_self" else "rltf_grpo"
    cold, one, rl = (losses.update(of, temperature=t) for of, t in ((name, 0.5), (name, 1.0), (plain, 0.5)))
    assert cold["loss/ce"] == pytest.approx(one["loss/ce"], rel=1e-6)
    assert cold["ratio/mean"] == pytest.approx(rl["ratio/mean"], rel=1e-5)
    assert cold["loss/rl"] == pytest.approx(rl["loss/rl"], rel=1e-4)
    assert cold["ratio/mean"] != pytest.approx(one["ratio/mean"], rel=0.001)


@pytest.mark.parametrize(
    "weighting",
    [
        "awr",
        pytest.param("importance_sampling", marks=pytest.mark.slow),
        "ppo",
        pytest.param("cispo", marks=pytest.mark.slow),
    ],
)
def test_every_option_of_sd_changes_the_loss_under_every_weighting(losses: Any, weighting: str):
    at = {"policy_loss": weighting, "epsilon": 0.9, "epsilon_high": 99.0, "min_logprob": None}
    base = losses("rltf_sd", **at)
    changes = [{"sd_baseline": "second"}, {"sd_baseline": "none"}, {"rl_coef": 0.5}, {"coef_ramp": "linear"},
               {"min_logprob": -5.95}, {"gamma": 0.9}]  # fmt: skip
    assert len({base, *(losses("rltf_sd", **{**at, **change}) for change in changes)}) == 1 + len(changes)
    grpo = losses("rltf_grpo", epsilon=0.9, epsilon_high=99.0)
    assert base != grpo == losses("rltf_sd", **at, start_step=6) == losses("rltf_sd", **{**at, "rl_coef": 0.0})


def test_the_weightings_and_the_clip_change_the_loss(losses: Any):
    at = {"min_logprob": None, "epsilon": 0.9, "epsilon_high": 99.0}
    assert len({losses("rltf_sd", policy_loss=w, **at) for w in ("awr", "ppo", "cispo")}) == 3
    narrow = {"min_logprob": None, "epsilon": 0.01, "epsilon_high": 0.01}
    assert (
        len({losses("rltf_sd", policy_loss=w, **narrow) for w in ("awr", "importance_sampling", "ppo", "cispo")}) == 4
    )


@pytest.mark.parametrize("name", ["rltf_fm", pytest.param("rl2f_self", marks=pytest.mark.slow), "sft_correct"])
def test_every_option_of_an_imitation_changes_the_loss(losses: Any, name: str):
    base = losses(name)
    changed = [losses(name, ce_coef=0.5), losses(name, coef_ramp="linear"), losses(name, start_step=6)]
    assert len({base, *changed}) == 4
    plain = losses("rl2f" if name == "rl2f_self" else "rltf_grpo")
    assert changed[2] == plain == losses(name, ce_coef=0.0)


# -- refusals ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["rltf_grpo", "rltf_sd", "rltf_fm", "sft_correct"])
def test_rltf_needs_fresh_prompts_and_a_second_turn(name: str):
    with pytest.raises(ValueError, match=r"set rollout\.prompting: reprompt"):
        config(name, rollout={**CONFIG["rollout"], "prompting": "append"})
    with pytest.raises(ValueError, match=rf"{name} with rollout\.max_turns 1"):
        config(name, rollout={**CONFIG["rollout"], "max_turns": 1})
    with pytest.raises(ValueError, match="group_size 1"):
        RunConfig.model_validate({**CONFIG, "stages": [{"name": "rl", "method": name, "steps": 1, "group_size": 1}]})


def test_a_prompt_for_critiques_that_is_not_the_teachers_is_refused():
    own = {"type": "self_critique", "prompt": "without_answer"}
    with pytest.raises(ValueError, match="set critique_prompt to the same"):
        config("rltf_fm", teacher=own)
    config({"type": "rltf_fm", "critique_prompt": "without_answer"}, teacher=own)
    config("rltf_fm", teacher="self_critique")


def test_an_option_that_no_method_has_is_an_error():
    for name in ("use_first_turn_baseline", "sft_buffer_size", "distillation_mode"):
        with pytest.raises((ValueError, ConfigError), match=name):
            config({"type": "rltf_sd", name: True})
