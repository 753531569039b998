"""What every training method must keep, whether a dialogue goes on or its turns have fresh prompts."""

from __future__ import annotations

from itertools import groupby

from rl2f_core.backends.fake import FakeBackend
from rl2f_core.config import StageConfig, parse_config
from rl2f_core.environments.base import wrap
from rl2f_core.methods.base import Method, Scene
from rl2f_core.methods.credit import has_gradient
from rl2f_core.rollout.build import build_engine
from rl2f_core.training.collect import Collector
from rl2f_core.types import Group, Sample

STAGES = [{"name": "s", "method": "sft", "steps": 1, "tasks_per_step": 2, "group_size": 2}]


def runs(sample: Sample, stream: str) -> set[tuple[int, ...]]:
    """The unbroken spans of tokens that carry weight in a stream."""
    tokens = zip(sample.token_ids, getattr(sample, stream), strict=True)
    return {tuple(t for t, _ in span) for held, span in groupby(tokens, lambda x: bool(x[1])) if held}


def check_method(method: Method) -> None:
    """Rows weigh whole attempts as they were sampled, or whole hints by cross-entropy; options fit the loss."""
    for history in method.histories:
        _check(method, history)


def _check(method: Method, history: str) -> None:
    from rl2f_core.training.losses import LossConfig

    backend = FakeBackend(script=lambda text, rng: wrap(str(rng.randint(1, 4))))
    config = parse_config({"environment": {"type": "guess_number", "low": 1, "size": 4}, "stages": STAGES,
                           "rollout": {"max_new_tokens": 400, "history": history}})  # fmt: skip
    stage = StageConfig(name="s", method=method.config, steps=1, tasks_per_step=4, group_size=4)
    engine = build_engine(config, backend)
    method.begin(Scene.of(engine, 0, 1))
    groups = method.collect(Collector(engine, stage, seed=0), 0)
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
            hints = {(*encode(turn.hint.text), backend.tokenizer.end_id) for turn in turns if turn.hint is not None}
            assert sample.weighted > 0
            assert {stream for stream in ("rl", "ce", "kl") if any(getattr(sample, stream))} <= {*method.streams}
            same = {*sample.rl, *sample.ce, *sample.kl} <= {0, 1} and not sample.context
            assert not method.plain or (same and sample.weighting == "ppo" and sample.floor is None)
            assert runs(sample, "rl") | runs(sample, "kl") <= attempts and runs(sample, "ce") <= attempts | hints
    assert (rows > 0) == method.trains and method.samples(Group(groups[0].task, ())) == []
    assert all(1 <= method.max_turns(turns) <= turns for turns in (1, 2, 5))
    LossConfig(**method.loss_options())
