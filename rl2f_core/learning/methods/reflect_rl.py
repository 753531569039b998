"""Reflect-RL: a reflector describes each state, and a policy chooses one labeled action (arXiv 2402.12621).

`reflect_sft` is the warm-up of either adapter on the environment's oracle. `reflect_rl` trains the policy while the
reflector stays fixed: a Monte-Carlo policy gradient with a group baseline, or PPO's clipped loss with
`num_iterations` > 1, and replayed successes.

The samples of the warm-up, for each state of an episode:

    reflection               state → the oracle's argument for its action
    action_with_reflection   state, argument, labeled actions → label of the oracle's action
    action                   state, labeled actions → label of the oracle's action

A negative example follows the oracle, takes one wrong action, explains the mistake and corrects it. Only the last step
is a target. The loss of a label is normalized over the labels of its state, as the policy is.

A replayed success was sampled by earlier weights μ, so each of its actions has the weight π / μ. The stage's
`importance_sampling_clip_max` truncates it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Literal, cast

from pydantic import Field

from rl2f_core import registry
from rl2f_core.config.curriculum import level_of
from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import ResolvedStage
from rl2f_core.dialogue.rollout.engine import RolloutEngine
from rl2f_core.dialogue.rollout.enumeration import (
    action_text,
    allowed_tokens,
    label_tokens,
    reflection_prompt,
    shuffled_actions,
    state_text,
)
from rl2f_core.dialogue.rollout.request import turn_seed
from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.stateful import OracleEnvironment
from rl2f_core.errors import FieldValueError, refuse_ineffective
from rl2f_core.learning.methods.base import Collector, DemonstrationSettings, Method
from rl2f_core.learning.methods.policy_gradient import PolicyGradient, PolicyGradientConfig
from rl2f_core.learning.methods.samples import sft_sample, unweighted_sample
from rl2f_core.registry import register
from rl2f_core.types import Group, JsonObject, Rollout, Task, TrainingSample, Turn

SampleKind = Literal["reflection", "action_with_reflection", "action"]


@register("method")
class ReflectSFT(Method["ReflectSFT.Config"]):
    """Cross-entropy on the oracle's reflections and actions."""

    on_policy = False
    loss_terms = ("ce",)
    prompt_modes = ("enumerate",)

    class Config(ComponentConfig):
        """Supervised warm-up of the reflector or of the policy of Reflect-RL."""

        type: Literal["reflect_sft"] = "reflect_sft"
        samples: tuple[SampleKind, ...] = Field(
            ("action_with_reflection",), min_length=1, json_schema_extra=BASIC_FIELD
        )
        """Samples of each state. reflection: state → reflection, for the reflector. action_with_reflection: state,
        reflection and actions → label. action: state and actions → label, for a policy without reflector."""
        oracle_rate: float = Field(0.7, ge=0, le=1, json_schema_extra=BASIC_FIELD)
        """Fraction of an episode's actions that are the oracle's; the others are random. The target always is."""
        negatives: int = Field(0, ge=0, le=64, json_schema_extra=BASIC_FIELD)
        """Negative examples per episode: a wrong step on the oracle's path, its explanation and its correction."""

        def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
            """Refuse an environment without an oracle."""
            kind = registry.get("environment", run.environment.type)
            if not issubclass(kind, OracleEnvironment):
                raise FieldValueError(
                    f"stage {stage.name!r}: reflect_sft imitates an oracle, which {run.environment.type!r} has not",
                    *run.loc_of(stage, "method"),
                )

    def collect(self, collector: Collector, now: ResolvedStage) -> list[Group]:
        return collector.demonstrations(now, DemonstrationSettings(self.config.oracle_rate))

    def samples(self, group: Group) -> list[TrainingSample]:
        writer = _SampleWriter(self.context.engine_of(group.task), group.task, self.config.samples)
        samples: list[TrainingSample] = []
        for rollout in group.trainable:
            dialogue = rollout.dialogue
            for k in range(len(dialogue.turns)):
                samples += writer.samples(dialogue.turns[:k], turn_seed(dialogue.seed, k), dialogue.id)
            for i in range(self.config.negatives):
                samples += writer.negative(turn_seed(dialogue.seed, f"negative/{i}"), dialogue.id)
        return [sample for sample in samples if len(sample.token_ids) <= self.context.max_model_len]


class _SampleWriter:
    """Writes the samples of one task."""

    def __init__(self, engine: RolloutEngine, task: Task, kinds: Sequence[SampleKind]) -> None:
        self.prompts, self.max_turns, self.task, self.kinds = engine.prompts, engine.config.max_turns, task, kinds
        self.environment = cast(OracleEnvironment[object], engine.environment)

    def samples(self, turns: Sequence[Turn], seed: int, dialogue: str, wrong: str = "") -> list[TrainingSample]:
        """Return the samples of the state after `turns`, whose last action is `wrong` if that is not empty."""
        environment, task, renderer = self.environment, self.task, self.prompts.renderer
        state = environment.restore(task, [turn.verdict for turn in turns])
        best = environment.oracle_action(task, state)
        reflection = environment.reflection(task, state, best)
        if wrong:
            reflection = environment.correction(task, state, wrong, best)
        samples = []
        if "reflection" in self.kinds:
            target = (*renderer.tokenizer.encode(renderer.escape(reflection)), renderer.tokenizer.eos_token_id)
            samples.append(sft_sample(reflection_prompt(self.prompts, task, turns), target, dialogue))
        actions = shuffled_actions(self.prompts, task, [turn.verdict for turn in turns], seed)
        choices = label_tokens(renderer, actions)
        label = choices[[choice.action for choice in actions].index(best)]
        for kind, text in (("action_with_reflection", reflection), ("action", None)):
            if kind in self.kinds:
                prompt = renderer.initial_prompt(action_text(state_text(environment, task, turns), actions, text))
                allowed = allowed_tokens(choices, label, len(prompt))
                samples.append(dataclasses.replace(sft_sample(prompt, label, dialogue), allowed_tokens=allowed))
        return samples

    def negative(self, seed: int, dialogue: str) -> list[TrainingSample]:
        """Return the samples after a wrong action on the oracle's path; none if all wrong actions end the episode."""
        rng = random.Random(f"negative/{seed}")
        candidates = list(self._wrong_turns())
        if not candidates:
            return []
        turns = rng.choice(candidates)
        return self.samples(turns, seed, dialogue, turns[-1].verdict.parsed or "")

    def _wrong_turns(self) -> Iterator[list[Turn]]:
        """Yield each prefix of the oracle's path with one wrong action that does not end the episode."""
        environment, task = self.environment, self.task
        path: list[Turn] = []
        for best in environment.plan(task)[: self.max_turns - 1]:
            earlier = [turn.verdict for turn in path]
            for action in environment.valid_actions(task, environment.restore(task, earlier)):
                turn = self._turn(path, action)
                if action != best and not turn.verdict.done:
                    yield [*path, turn]
            path.append(self._turn(path, best))

    def _turn(self, path: Sequence[Turn], action: str) -> Turn:
        attempt = wrap_answer(action)
        verdict = self.environment.verify_turn(self.task, [turn.verdict for turn in path], attempt)
        return Turn(index=len(path), attempt=attempt, verdict=verdict)


@register("method")
class ReflectRL(PolicyGradient["ReflectRL.Config"]):
    """Policy gradient over labeled actions, with replayed successes."""

    prompt_modes = ("enumerate",)
    uniform_weights = False

    class Config(PolicyGradientConfig):
        """Reinforcement of the policy of Reflect-RL."""

        type: Literal["reflect_rl"] = "reflect_rl"
        advantage_level: Literal["turn", "dialogue"] = "turn"
        """turn: return-to-go against the members that reached the turn; dialogue: one return for all turns."""
        gamma: float = Field(1.0, ge=0, le=1, json_schema_extra=BASIC_FIELD)
        """Discount per turn."""
        epsilon: float | None = Field(0.1, gt=0, lt=1)
        """ε_low: the ratio is clipped below 1 − ε_low; None does not clip it below."""
        epsilon_high: float | None = Field(0.1, gt=0)
        """ε_high: the ratio is clipped above 1 + ε_high; None does not clip it above."""
        replay_size: int = Field(50, ge=0, le=1000)
        """Solved episodes with a nonzero advantage that are kept for replay, the newest ones."""
        replay_per_step: int = Field(0, ge=0, json_schema_extra=BASIC_FIELD)
        """Episodes of earlier steps at the same level of the curriculum that each step trains on again."""

        def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
            """Also refuse more replayed episodes than are kept."""
            super().check_stage(stage, run)
            if self.replay_per_step > self.replay_size:
                refuse_ineffective(
                    f"stage {stage.name!r}: replay_per_step {self.replay_per_step} is more than the {self.replay_size} "
                    "episodes that are kept; raise replay_size",
                    *run.loc_of(stage, "method", "replay_size"),
                )

    def __init__(self, config: ReflectRL.Config) -> None:
        super().__init__(config)
        self._successes: list[JsonObject] = []
        self._replayed: list[JsonObject] = []

    def collect(self, collector: Collector, now: ResolvedStage) -> list[Group]:
        groups = super().collect(collector, now)
        known = [success for success in self._successes if success["level"] == collector.level]
        self._replayed = random.Random(f"{collector.seed}/replay/{now.step}").sample(
            known, min(len(known), self.config.replay_per_step)
        )
        self._successes += [
            _stored(group.task, rollout, advantages)
            for group in groups
            for rollout, advantages in zip(group.trainable, self.advantages(group), strict=True)
            if rollout.dialogue.solved and any(advantages)
        ]
        del self._successes[: max(0, len(self._successes) - self.config.replay_size)]
        return groups

    def extra_samples(self, group: Group) -> list[TrainingSample]:
        replayed, self._replayed = self._replayed, []
        return [sample for success in replayed for sample in _replayed_samples(success)]

    def state(self) -> JsonObject:
        return {"successes": self._successes}

    def load_state(self, state: JsonObject) -> None:
        self._successes = list(state["successes"])


def _stored(task: Task, rollout: Rollout, advantages: Sequence[float]) -> JsonObject:
    """Return an episode as plain data, with what a replay needs."""
    sequences = [
        {
            "tokens": list(sequence.token_ids),
            "start": sequence.student_mask.index(True),
            "logprobs": [p for p, s in zip(sequence.logprobs, sequence.student_mask, strict=True) if s],
            "allowed": [list(tokens) for _, tokens in sorted(sequence.allowed_tokens.items())],
            "advantage": advantages[turn.index],
        }
        for sequence, turn in zip(rollout.sequences, rollout.dialogue.turns, strict=False)
    ]
    return {"id": rollout.dialogue.id, "level": level_of(task.id), "sequences": sequences}


def _replayed_samples(success: JsonObject) -> list[TrainingSample]:
    """Return the samples of a stored episode, with importance weights."""
    samples = []
    for stored in success["sequences"]:
        before, n = [0.0] * stored["start"], len(stored["logprobs"])
        samples.append(
            dataclasses.replace(
                unweighted_sample(stored["tokens"], f"{success['id']} replay"),
                policy_mask=[False] * len(before) + [True] * n,
                logprobs=[*before, *stored["logprobs"]],
                advantages=before + [stored["advantage"]] * n,
                rl_weights=before + [1.0] * n,
                policy_loss="importance_sampling",
                allowed_tokens={len(before) + i: tokens for i, tokens in enumerate(stored["allowed"])},
            )
        )
    return samples
