"""The update side that is ours: `Learner.update`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl2f_core.types import TrainingSample

from .worker import Channel, Memory, Settings, Stopwatch

if TYPE_CHECKING:
    from rl2f_core.learning.learner.learner import Learner

RATE = 2e-4
SEED = 0


def serve(settings: Settings, channel: Channel) -> None:
    """Every request is one update."""
    from rl2f_core.config.stage import StageConfig
    from rl2f_core.learning.learner.losses import LossConfig
    from rl2f_core.learning.learner.micro_batch import micro_batches

    samples = read_rows(settings.rows_file)
    learner = made_learner(settings)
    limit = max(16, padded_width(samples) * settings.micro_rows)
    stage = StageConfig(name="bench", method="rl2f", steps=settings.steps, learning_rate=RATE, micro_batch_tokens=limit)
    count = len(micro_batches(samples, limit, learner.pad, learner.device))
    memory = Memory(learner.device)
    channel.send(lora=learned(learner), micro_batches=count)
    step = 0
    while channel.receive() is not None:
        watch = Stopwatch(learner.device)
        metrics = learner.update(samples, LossConfig(), stage.resolve(step, settings.temperature))
        channel.send(**watch.read(), loss=metrics["loss"], grad_norm=metrics["grad_norm"], **memory.report())
        step += 1


def made_learner(settings: Settings) -> Learner:
    """Our learner with the adapter of the settings."""
    from transformers import AutoTokenizer

    from rl2f_core.config.model import LoraConfig
    from rl2f_core.learning.learner.learner import Learner
    from rl2f_core.models.device import resolve_device
    from rl2f_core.models.tokenizer import HFChatTokenizer

    device, dtype = resolve_device(settings.device, settings.dtype)
    tokenizer = HFChatTokenizer(AutoTokenizer.from_pretrained(settings.folder))
    return Learner(
        Path(settings.folder),
        LoraConfig(rank=settings.rank, alpha=2 * settings.rank),
        dtype=dtype,
        device=device,
        banned=tokenizer.banned_token_ids,
        pad=tokenizer.eos_token_id,
        seed=SEED,
    )


def learned(learner: Learner) -> int:
    """Weights that are trained."""
    return sum(parameter.numel() for parameter in learner.parameters.values())


def read_rows(path: str) -> list[TrainingSample]:
    """The rows that the rollout side saved."""
    held: list[dict[str, Any]] = json.loads(Path(path).read_text())
    return [TrainingSample(**row) for row in held]


def opening_length(sample: TrainingSample) -> int:
    """Tokens before the first of the student's."""
    return list(sample.rl_weights).index(1.0)


def padded_width(samples: list[TrainingSample]) -> int:
    """The width of the batch that TRL pads the rows to: longest opening plus longest completion."""
    openings = [opening_length(s) for s in samples]
    return max(openings) + max(len(s.token_ids) - n for s, n in zip(samples, openings, strict=True))
