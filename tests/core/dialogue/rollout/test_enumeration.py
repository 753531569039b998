"""Action enumeration: labels, prompts, the distribution of sampler and learner, and its policy gradient by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_rows import learner

from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.build import build_backend, build_engine
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.dialogue.rollout.enumeration import action_labels
from rl2f_core.dialogue.rollout.transcript import rollout_from_text
from rl2f_core.environments.base import wrap_answer
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig, LossNormalizers, TokenBatch, loss
from rl2f_core.learning.learner.micro_batch import micro_batch
from rl2f_core.learning.methods.rl2f import RL2F
from rl2f_core.learning.methods.samples import policy_samples, unweighted_sample
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams, allowed_next
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.backends.vllm.protocol import (
    EngineRequest,
    choice_params,
    generation_params,
    parse_completion,
    to_generation,
)
from rl2f_core.models.modeling import logprobs
from rl2f_core.models.tokenizer import ByteTokenizer
from rl2f_core.types import FinishReason, Group, Rollout, StopReason

pytestmark = pytest.mark.usefixtures("corridor")


def config(**changes: Any) -> Any:
    data = {
        "environment": "corridor",
        "backend": "fake",
        "teacher": "contentless",
        "reward": {"preset": "environment"},
        "rollout": {"max_turns": 5, "max_new_tokens": 4, "max_seq_len": 2048, "prompting": "enumerate"},
        "stages": [{"name": "rl", "method": "rl2f", "steps": 1}],
        "leak_detection": {"detectors": []},
    }
    return parse_config(data | changes)


def engine_of(action: str, **changes: Any) -> RolloutEngine:
    """A student that always chooses the label of one action."""

    def script(text: str, rng: Any) -> str:
        return next(line[-1] for line in text.splitlines() if line[:-1] == f"{action}: ")

    return build_engine(config(**changes), FakeBackend(script=script))


def run(engine: RolloutEngine, seed: int = 7, **more: Any) -> Rollout:
    task = engine.environment.task("test", 0)
    task = task.model_copy(update={"public": {"start": 3}, "privileged": {"flag": 5}})
    (rollout,) = engine.run([RolloutRequest(task, "d", "g", 0, seed, **more)])
    return rollout


# -- prompts and labels --------------------------------------------------------------------------------------------
def test_each_turn_has_a_prompt_with_the_state_and_its_labeled_actions() -> None:
    engine = engine_of("right")
    rollout = run(engine)
    dialogue, decode = rollout.dialogue, engine.backend.tokenizer.decode
    assert (dialogue.stop_reason, [t.attempt for t in dialogue.turns]) == (
        StopReason.SOLVED,
        [wrap_answer("right")] * 2,
    )
    second = rollout.sequences[1]
    prompt = decode([t for t, s in zip(second.token_ids, second.student_mask, strict=True) if not s])
    listed = "\n".join(f"{c.action}: {c.label}" for c in dialogue.turns[1].actions)
    assert "Find the flag. You are at 3.\nActions so far: right.\nYou are at 4.\n\n" + listed in prompt
    label = next(c.label for c in dialogue.turns[1].actions if c.action == "right")
    assert decode(dialogue.turns[1].token_ids) == label and decode(second.token_ids[-1:]) == label
    assert set(second.turn_ids) == {0, 1} and sum(second.student_mask) == 1
    assert second.allowed_tokens == {len(second.token_ids) - 1: [ord("A"), ord("B")]}


def test_the_actions_of_a_state_are_in_an_order_of_the_seed() -> None:
    engine = engine_of("right")
    orders = {tuple(c.action for c in run(engine, seed).dialogue.turns[0].actions) for seed in range(8)}
    assert orders == {("left", "right"), ("right", "left")}
    assert run(engine, 3) == run(engine, 3)


def test_only_the_actions_of_the_state_have_a_label() -> None:
    engine = engine_of("left", environment={"type": "corridor", "cells": 3})
    (first, *_) = run(engine).dialogue.turns
    assert [c.action for c in first.actions] == ["left"]


def test_the_prompt_contains_the_hint_of_a_teacher() -> None:
    engine = engine_of("right", teacher="scripted")
    run(engine)
    assert "You are at 4.\n\nThe flag is ahead of you.\n\n" in engine.backend.seen[-1]  # type: ignore[attr-defined]


def test_labels_are_letters_of_one_token_or_numbers_of_equal_length() -> None:
    class Split(ByteTokenizer):
        def encode(self, text: str) -> list[int]:
            return [*super().encode(text), 1] if text == "B" else super().encode(text)

    assert action_labels(Split(), 3) == ("A", "C", "D")
    labels = action_labels(Split(), 120)
    assert labels[:2] == ("000", "001") and len(set(labels)) == 120 and {len(label) for label in labels} == {3}


def test_a_stored_dialogue_continues_with_its_labels() -> None:
    whole = run(engine_of("right"))
    continued = run(engine_of("right"), turns=whole.dialogue.turns[:1])
    assert continued == whole
    relabeled = whole.dialogue.turns[0].model_copy(update={"actions": whole.dialogue.turns[0].actions[::-1]})
    assert run(engine_of("right"), turns=(relabeled,)).sequences[0] != whole.sequences[0]


def test_written_actions_become_labels() -> None:
    engine = engine_of("right")
    request = RolloutRequest(engine.environment.task("train", 0), "d", "g", 0, 7)
    state = engine.environment.restore(request.task, ())
    action = engine.environment.valid_actions(request.task, state)[0]  # type: ignore[attr-defined]
    rollout = rollout_from_text(engine, request, [wrap_answer(action)])
    (turn,) = rollout.dialogue.turns
    assert {c.action: c.label for c in turn.actions}[action] == engine.backend.tokenizer.decode(turn.token_ids)


def test_a_configuration_that_cannot_enumerate_is_refused() -> None:
    rollout = {"prompting": "enumerate"}
    with pytest.raises(ConfigError, match="which 'secret_code' is not"):
        config(environment="secret_code", reward={}, rollout=rollout)
    with pytest.raises(ConfigError, match=r"does not support rollout\.prompting 'enumerate'"):
        config(stages=[{"name": "s", "method": "ppo", "steps": 1}])
    with pytest.raises(ConfigError, match="set trainer: native"):
        config(stages=[{"name": "s", "method": "rl2f", "trainer": "trl", "steps": 1}])


# -- the distribution ----------------------------------------------------------------------------------------------
def test_only_the_tokens_that_continue_a_choice_are_allowed() -> None:
    choices = ((1, 2), (1, 3), (4, 5))
    assert [allowed_next(choices, sampled) for sampled in ((), (1,), (4,), (1, 2))] == [[1, 4], [2, 3], [5], []]


def test_restricted_log_probabilities_by_hand() -> None:
    logits_NV = torch.tensor([[log(1.0), log(2.0), log(6.0), log(9.0)], [0.0, 0.0, 0.0, 0.0]])
    allowed_NK = logprobs.allowed_tensor([(0, 1, 2), ()], logits_NV.device)
    assert allowed_NK is not None
    p_NV = logprobs.restrict(logits_NV, allowed_NK).softmax(1)
    assert p_NV.tolist() == [pytest.approx([1 / 9, 2 / 9, 6 / 9, 0]), pytest.approx([0.25] * 4)]
    assert logprobs.allowed_tensor([(), ()], logits_NV.device) is None


class Logits(torch.nn.Module):
    """A model whose logits are the hidden states."""

    class config:
        pass

    def get_output_embeddings(self) -> torch.nn.Module:
        return torch.nn.Identity()


def test_the_policy_gradient_over_three_actions_by_hand() -> None:
    """p = (1, 2, 6) / 9 over the tokens 0 to 2; token 3 is no label. dL/dz = −A (1[a] − p), here a = 1 and A = 3."""
    hidden_NH = torch.tensor([[log(1.0), log(2.0), log(6.0), log(9.0)]], requires_grad=True)
    allowed_NK = torch.tensor([[0, 1, 2]])
    logp_N, entropy_N = logprobs.compute_logprobs(Logits(), hidden_NH, torch.tensor([1]), allowed_NK=allowed_NK)
    assert logp_N.item() == pytest.approx(log(2 / 9))
    assert entropy_N.item() == pytest.approx(-sum(p * log(p) for p in (1 / 9, 2 / 9, 6 / 9)))
    zero_N = torch.zeros(1)
    batch = TokenBatch(logp_N.detach(), torch.tensor([3.0]), torch.ones(1), zero_N, zero_N)
    value, _ = loss(logp_N, batch, LossNormalizers(1, 0, 0), LossConfig(epsilon=0.1, epsilon_high=0.1))
    value.backward()
    assert hidden_NH.grad is not None
    assert hidden_NH.grad[0].tolist() == pytest.approx([3 / 9, -3 * 7 / 9, 3 * 6 / 9, 0.0], abs=1e-6)


@pytest.mark.parametrize("choices", [((300,), (301,), (302,)), ((300, 5), (300, 6), (301, 7))])
def test_sampler_and_learner_have_the_same_log_probabilities(tiny: Path, choices: Any) -> None:
    """Labels of one token, and labels of several with a common first token, at another temperature than 1."""
    backend = build_backend(config(model={"name": str(tiny), "device": "cpu", "dtype": "float32"}, backend="hf"))
    trained = learner(Learner, tiny)
    trained.policy_model.banned = torch.tensor(backend.tokenizer.banned_token_ids)
    requests = [GenerationRequest(tuple(range(40, 50 + k)), seed, choices=choices) for k, seed in enumerate(range(12))]
    generations = backend.generate(requests, SamplingParams(4, temperature=0.7))
    samples = []
    for request, generation in zip(requests, generations, strict=True):
        assert generation.token_ids in choices and generation.stop is FinishReason.EOS
        start, ids = len(request.token_ids), (*request.token_ids, *generation.token_ids)
        weights = [0.0] * start + [1.0] * len(generation.token_ids)
        allowed = {start + i: allowed_next(choices, generation.token_ids[:i]) for i in range(len(generation.token_ids))}
        samples.append(replace(unweighted_sample(ids, ""), policy_mask=[w > 0 for w in weights], rl_weights=weights,
                               allowed_tokens=allowed))  # fmt: skip
    logp_N, _, _ = trained.policy_model(micro_batch(samples, trained.pad, trained.device), 0.7)
    sampled = [logp for generation in generations for logp in generation.logprobs]
    assert logp_N.tolist() == pytest.approx(sampled, abs=1e-4)
    assert len({generation.token_ids for generation in generations}) > 1
    one = all(len(choice) == 1 for choice in choices)
    for generation in generations:
        assert sum(torch.tensor(generation.choice_logprobs).exp()) == pytest.approx(1 if one else 0, abs=1e-5)
        assert not one or generation.choice_logprobs[choices.index(generation.token_ids)] == pytest.approx(
            generation.logprobs[0]
        )


def test_the_samples_of_a_dialogue_have_the_labels_of_each_state(tiny: Path) -> None:
    model = {"name": str(tiny), "device": "cpu", "dtype": "float32"}
    engine = build_engine(config(), build_backend(config(model=model, backend="hf")))
    rollouts = tuple(run(engine, seed) for seed in range(3))
    turn = rollouts[0].dialogue.turns[0]
    assert sum(c.probability or 0 for c in turn.actions) == pytest.approx(1, abs=1e-4)
    samples = [s for r in rollouts for s in policy_samples(r, [1.0] * len(r.dialogue.turns), kl=False)]
    trained = learner(Learner, tiny)
    trained.policy_model.banned = torch.tensor(engine.backend.tokenizer.banned_token_ids)
    for sample in samples:
        logp_N, _, _ = trained.policy_model(micro_batch([sample], trained.pad, trained.device), 1.0)
        assert logp_N.tolist() == pytest.approx([sample.logprobs[-1]], abs=1e-4)
    group = Group(engine.environment.task("test", 0), rollouts)
    assert len(RL2F(RL2F.Config(gamma=1)).samples(group)) == len(samples)


def test_vllm_samples_one_token_among_the_labels() -> None:
    params = generation_params(SamplingParams(9, 0.7), 1, 2, [0, 1])
    chosen = choice_params(params, ((7,), (5,)))
    assert (chosen["allowed_token_ids"], chosen["max_tokens"], chosen["temperature"]) == ([5, 7], 1, 0.7)
    assert "logit_bias" not in chosen and chosen["logprobs"] == 2
    alternatives = {"token_id:7": -0.5, "token_id:5": -0.93, "token_id:9": None}
    logprobs = {"token_logprobs": [-0.5], "top_logprobs": [alternatives]}
    body = {"choices": [{"token_ids": [7], "logprobs": logprobs}]}
    output = parse_completion(EngineRequest((3,), chosen), body)
    generation = to_generation(output, SamplingParams(9), 2, ((7,), (5,)))
    assert generation.stop is FinishReason.EOS and generation.choice_logprobs == (-0.5, -0.93)
    assert to_generation(output, SamplingParams(9), 2, ((7,), (6,))).choice_logprobs == ()
    assert choice_params(params, [(i,) for i in range(21)])["logprobs"] == 0
    with pytest.raises(RunError, match="must be one token"):
        choice_params(params, ((7, 8), (5, 6)))
