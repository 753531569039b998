"""What every training method must keep, whether a dialogue goes on or its turns have fresh prompts."""

from __future__ import annotations

from itertools import groupby

from rl2f_core.config.loading import parse_config
from rl2f_core.config.stage import StageConfig
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.environments.base import wrap_answer
from rl2f_core.learning.methods.advantages import has_gradient
from rl2f_core.learning.methods.base import Method, StepContext
from rl2f_core.learning.methods.loss_spec import LossConfig
from rl2f_core.learning.training.collector import Collector
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.types import Group, TrainingSample

STAGES = [{"name": "s", "method": "sft", "steps": 1, "tasks_per_step": 2, "group_size": 2}]


def runs(sample: TrainingSample, stream: str) -> set[tuple[int, ...]]:
    """The unbroken spans of tokens that carry weight in a stream."""
    tokens = zip(sample.token_ids, getattr(sample, f"{stream}_weights"), strict=True)
    return {tuple(t for t, _ in span) for held, span in groupby(tokens, lambda x: bool(x[1])) if held}


def check_method(method: Method) -> None:
    """Rows weigh whole attempts as they were sampled, or whole hints by cross-entropy; options fit the loss."""
    for history in method.prompt_modes:
        _check(method, history)


def _check(method: Method, history: str) -> None:
    backend = FakeBackend(script=lambda text, rng: wrap_answer(str(rng.randint(1, 4))))
    labeled = history == "enumerate"
    environment = {"type": "taxi", "size": 3} if labeled else {"type": "guess_number", "low": 1, "size": 4}
    stages = [{**STAGES[0], "method": "reflect_sft"}] if labeled else STAGES
    config = parse_config({"environment": environment, "stages": stages,
                           "rollout": {"max_new_tokens": 400, "max_seq_len": 4096, "prompting": history}})  # fmt: skip
    stage = StageConfig(name="s", method=method.config, steps=1, tasks_per_step=4, group_size=4)
    engine = build_engine(config, backend)
    method.begin_step(StepContext.of(engine, 0, 1))
    groups = method.collect(Collector(engine, stage, seed=0), stage.resolve(0, 1.0))
    assert len(groups) == 4 and all(len(g.rollouts) == 4 for g in groups)
    encode = backend.tokenizer.encode
    rows = 0
    for group in groups:
        advantages = method.advantages(group)
        assert [len(a) for a in advantages] == [len(r.dialogue.turns) for r in group.trainable]
        dialogues = {r.dialogue.id: r.dialogue for r in group.rollouts}
        samples = method.samples(group)
        assert not method.on_policy or bool(samples) or not has_gradient(advantages)
        for sample in samples:
            rows += 1
            turns = dialogues[sample.dialogue].turns
            attempts = {turn.token_ids for turn in turns}
            hints = {
                (*encode(turn.hint.text), backend.tokenizer.eos_token_id) for turn in turns if turn.hint is not None
            }
            assert sample.weighted_positions
            assert {stream for stream in ("rl", "ce", "kl") if any(getattr(sample, f"{stream}_weights"))} <= {
                *method.loss_terms
            }
            same = {*sample.rl_weights, *sample.ce_weights, *sample.kl_weights} <= {
                0,
                1,
            } and not sample.reference_prompt_ids
            assert not method.uniform_weights or (same and sample.policy_loss == "ppo" and sample.min_logprob is None)
            labels = {tuple(encode(choice.label)) for turn in turns for choice in turn.actions}
            assert runs(sample, "rl") | runs(sample, "kl") <= attempts
            assert runs(sample, "ce") <= attempts | hints | labels
    assert (rows > 0) == method.updates_weights and method.samples(Group(groups[0].task, ())) == []
    assert all(1 <= method.max_turns(turns) <= turns for turns in (1, 2, 5))
    assert isinstance(method.loss_options(), LossConfig)
