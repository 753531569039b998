"""The whole step that is ours: adapter to the sampler, dialogues, credit, rows, and one update, as a run does them."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from pathlib import Path

from rl2f_core.config.rollout import RewardConfig
from rl2f_core.dialogue.rollout.engine import RolloutEngine
from rl2f_core.learning.methods.base import StepContext
from rl2f_core.learning.methods.rl2f import RL2F
from rl2f_core.types import Group, Task, Verdict

from .learner import RATE, learned, made_learner
from .rollout import UnsolvedCode, build, hf_backend, parameters, requests_of, tokens_read
from .worker import Channel, Memory, Settings, Stopwatch

WIDTH = 512
"""Tokens of the longest dialogue that is reckoned with: the width of TRL's completions and of our micro-batches."""


class ScoredCode(UnsolvedCode):
    """`secret_code` whose distances are drawn from the attempt's words, so that every group has something to learn."""

    def verify(self, task: Task, attempt: str) -> Verdict:
        drawn = int.from_bytes(hashlib.sha256(attempt.encode()).digest()[:4], "big") / 2**32
        return super().verify(task, attempt).model_copy(update={"distance": drawn})


def scored(settings: Settings) -> RolloutEngine:
    """The engine on tasks that are never solved and always scored."""
    engine = build(settings)
    reward = RewardConfig.model_validate({**engine.reward.model_dump(), "progress_weight": 1.0})
    return dataclasses.replace(engine, environment=ScoredCode(engine.environment.config), reward=reward)


def serve(settings: Settings, channel: Channel) -> None:
    """Every request is one whole step."""
    from rl2f_core.config.stage import StageConfig

    engine = scored(settings)
    backend = hf_backend(engine)
    learner = made_learner(settings)
    method = RL2F(RL2F.Config())
    stage = StageConfig(
        name="bench", method="rl2f", steps=settings.steps, learning_rate=RATE,
        micro_batch_tokens=WIDTH * settings.micro_rows,
    )  # fmt: skip
    memory = Memory(backend.device)
    channel.send(device=str(backend.device), lora=learned(learner), **parameters(backend.model))
    with tempfile.TemporaryDirectory() as made:
        folder, step = Path(made), 0
        while channel.receive() is not None:
            watch = Stopwatch(backend.device)
            learner.save_adapter(folder)
            backend.load_adapter("policy", folder)
            method.begin_step(StepContext.of(engine, step, settings.steps))
            wanted = requests_of(settings, engine, step)
            rollouts = engine.run(wanted, adapter="policy", max_turns=settings.turns)
            played = watch.read()
            size = settings.group
            groups = [Group(wanted[i].task, tuple(rollouts[i : i + size])) for i in range(0, len(rollouts), size)]
            samples = [sample for group in groups for sample in method.samples(group)]
            options = method.loss_options()
            samples, _ = learner.compute_advantages(samples, options, stage.resolve(step, settings.temperature))
            learner.update(samples, options, stage.resolve(step, settings.temperature))
            channel.send(
                **watch.read(),
                rollout=played,
                student=sum(r.student_tokens for r in rollouts),
                read=tokens_read(engine, wanted, [len(r.sequences[0].token_ids) for r in rollouts]),
                rows=len(samples),
                trained=sum(len(sample.weighted_positions) for sample in samples),
                **memory.report(),
            )
            step += 1
