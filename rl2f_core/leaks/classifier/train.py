"""Train a classifier on labeled hints, choose its threshold on held-out tasks, and write its folder."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field, field_validator

from rl2f_core.config.fields import BASIC_FIELD, BaseConfig
from rl2f_core.config.model import ModelConfig
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.file_io import write_atomically
from rl2f_core.leaks.classifier.augment import augment
from rl2f_core.leaks.classifier.examples import (
    GENERATED,
    HANDWRITTEN,
    TEACHER_WRITTEN,
    Example,
    generated,
    handwritten,
    scripted,
    teacher_written,
)
from rl2f_core.leaks.classifier.operations import operations
from rl2f_core.leaks.classifier.quality import QualityReport, choose_threshold, make_report
from rl2f_core.leaks.classifier.rendering import encode, render
from rl2f_core.leaks.classifier.stored import CLASSES, DETECTOR, DetectorFile
from rl2f_core.model_store.conversion import CONVERSION

if TYPE_CHECKING:
    from rl2f_core.model_store.store import ModelFolder
    from rl2f_core.modeling.sequence_classifier import Features, SequenceClassifier

OnProgress = Callable[[str, int, int, str], None]
"""Receives phase, done, total and a note."""
LEAVE_OUT = ("kind", "environment")
BENCHMARKS: dict[str, Callable[[], list[Example]]] = {
    GENERATED: generated,
    HANDWRITTEN: handwritten,
    TEACHER_WRITTEN: teacher_written,
}
"""Dev half of each benchmark by name."""
MIN_EXAMPLES = 8
"""Fewer original examples in the training set are an error."""


class TrainingConfig(BaseConfig):
    """Data, model and optimization of a classifier."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    """Base model of the classifier."""
    layers: int | None = Field(12, ge=1, json_schema_extra=BASIC_FIELD)
    """Layers of the base model that are used, from the input; None for all. Time is proportional to it."""
    trained_layers: int | None = Field(0, ge=0)
    """Used layers with an adapter, from the head; None for all. 0 trains the head alone on the features of the frozen
    model, with one forward pass per example; rank, epochs, learning_rate and weight_decay then have no effect. With the
    shipped data, six layers had no better area under ROC and took four times as long."""
    head_penalty: float = Field(5.0, gt=0)
    """L2 penalty of a head that is trained alone, on standardized features."""
    rank: int = Field(16, ge=1, le=256)
    """Rank of the LoRA; alpha is twice the rank."""
    epochs: int = Field(3, ge=1, le=100, json_schema_extra=BASIC_FIELD)
    """Passes over the training examples."""
    batch_size: int = Field(16, ge=1, le=512)
    """Examples per update."""
    learning_rate: float = Field(3e-4, gt=0)
    """Peak learning rate of AdamW, with a linear decay."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW."""
    max_tokens: int = Field(288, ge=64, le=2048)
    """Tokens of an input; a longer one loses its beginning."""
    benchmarks: tuple[str, ...] = Field(tuple(BENCHMARKS), json_schema_extra=BASIC_FIELD)
    """Benchmarks whose dev halves are used: generated, handwritten, teacher_written."""
    copies: int = Field(1, ge=0, le=50)
    """Augmented copies of each hand-written or labeled example; a generated leak has at most one, others none."""
    generated_seeds: int = Field(0, ge=0, le=100)
    """Further seeds of the generated benchmark's items, in the phrasings of its dev half."""
    num_operations: int = Field(20, ge=0)
    """Tasks per environment with generated hints on an operation on the attempt."""
    num_scripted: int = Field(20, ge=0)
    """Scripted hints per environment, which never leak."""
    heldout_fraction: float = Field(0.25, gt=0, lt=1)
    """Fraction of the tasks that choose the threshold."""
    precision: float = Field(0.95, gt=0, le=1, json_schema_extra=BASIC_FIELD)
    """Precision of the threshold on the held-out tasks of each source."""
    leave_out: str | None = None
    """`kind=NAME` or `environment=NAME`: train without these examples, and score on them."""
    seed: int = Field(0, ge=0, lt=2**31, json_schema_extra=BASIC_FIELD)
    """Seed of split, augmentation, weights and order."""

    @field_validator("benchmarks")
    @classmethod
    def _check_benchmarks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in value if name not in BENCHMARKS]:
            raise ValueError(f"unknown benchmark {unknown[0]!r}; known: {', '.join(BENCHMARKS)}")
        return value

    @field_validator("leave_out")
    @classmethod
    def _check_leave_out(cls, value: str | None) -> str | None:
        what, sign, name = (value or "").partition("=")
        if value is not None and (what not in LEAVE_OUT or not sign or not name):
            raise ValueError(f"is kind=NAME or environment=NAME, not {value!r}")
        return value


@dataclass(frozen=True)
class Split:
    """Examples by their use."""

    train: list[Example]
    heldout: list[Example]
    left_out: list[Example]


def collect(config: TrainingConfig, labels: Sequence[Example] = ()) -> list[Example]:
    """Return the original examples: the dev halves of the benchmarks, and people's labels."""
    return [*labels, *(example for name in config.benchmarks for example in BENCHMARKS[name]())]


def split(examples: Sequence[Example], config: TrainingConfig) -> Split:
    """Split the examples by task: a hash of seed and task decides, so a task never changes sides as data is added."""
    what, _, name = (config.leave_out or "").partition("=")
    parts = Split([], [], [])
    for example in examples:
        if what and _value(example, what) == name:
            parts.left_out.append(example)
            continue
        digest = hashlib.sha256(f"{config.seed}/{example.group}".encode()).digest()
        held = int.from_bytes(digest[:4], "big") < config.heldout_fraction * 2**32
        (parts.heldout if held else parts.train).append(example)
    if what and not parts.left_out:
        known = sorted({_value(example, what) for example in examples})
        raise ConfigError(f"No example has this {what}.", value=name, known=known)
    for side, listed in (("training", parts.train), ("held-out", parts.heldout)):
        if len({example.leak for example in listed}) < 2 or (side == "training" and len(listed) < MIN_EXAMPLES):
            raise DataError(
                f"The {side} examples need leaks and hints without a leak.",
                value=f"{sum(e.leak for e in listed)} leaks of {len(listed)}",
                fix="Label more hints, or add a benchmark.",
            )
    return parts


def training_set(parts: Split, config: TrainingConfig) -> list[Example]:
    """Return the training examples with augmentation, operations and scripted hints.

    Nothing is derived from held-out or left-out examples, and with a left-out environment nothing is generated for it.
    """
    rng = random.Random(f"classifier/{config.seed}")
    examples = list(parts.train)
    examples += augment([example for example in parts.train if example.source != GENERATED], config.copies, rng)
    generated_leaks = [example for example in parts.train if example.source == GENERATED and example.leak]
    examples += augment(generated_leaks, min(config.copies, 1), rng)
    known = {example.group for example in (*parts.heldout, *parts.left_out)}
    for seed in range(1, config.generated_seeds + 1):
        examples += [example for example in generated(extra_seed=seed) if example.group not in known]
    environments = list({example.environment.name: example.environment for example in parts.train}.values())
    examples += operations(environments, config.num_operations, rng)
    examples += scripted(environments, config.num_scripted, rng)
    what, _, name = (config.leave_out or "").partition("=")
    return [example for example in examples if not what or _value(example, what) != name]


def _value(example: Example, what: str) -> str:
    """Return the kind or the environment of an example; `what` is one of `LEAVE_OUT`."""
    return example.kind if what == "kind" else example.environment.name


def train(
    config: TrainingConfig,
    folder: Path,
    labels: Sequence[Example] = (),
    on_progress: OnProgress = lambda phase, done, total, note: None,
    stop: Callable[[], bool] = lambda: False,
    features: Features | None = None,
) -> DetectorFile | None:
    """Train a classifier and write it to an existing empty folder; deterministic on one machine.

    Args:
        config: Settings.
        folder: Folder of the detector, `…/NAME/vN`; removed if the training is stopped or fails.
        labels: Examples with people's labels.
        on_progress: Receives the progress.
        stop: Checked between updates.
        features: Features of the frozen model from earlier trainings with the same model and layers; receives new ones.

    Returns the detector's file, or None if `stop` ended the training.
    """
    try:
        stored = _train(config, folder, labels, on_progress, stop, {} if features is None else features)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if stored is None:
        shutil.rmtree(folder, ignore_errors=True)
    return stored


def _train(
    config: TrainingConfig,
    folder: Path,
    labels: Sequence[Example],
    on_progress: OnProgress,
    stop: Callable[[], bool],
    features: Features,
) -> DetectorFile | None:
    from transformers import AutoTokenizer

    from rl2f_core.model_store.store import get_model

    started = sum(os.times()[:2])
    on_progress("preparing examples", 0, 1, "")
    parts = split(collect(config, labels), config)
    examples = training_set(parts, config)
    base = get_model(config.model.name)
    tokenizer = AutoTokenizer.from_pretrained(base.path)
    network = _fit(config, base, tokenizer, examples, on_progress, stop, features)
    if network is None:
        return None
    on_progress("scoring held-out hints", 0, 1, f"{len(parts.heldout)} hints")
    network.save(folder)
    if config.trained_layers != 0:
        network = _reload(folder, config, base)
    leak = _leak_probabilities(network, tokenizer, parts.heldout, config)
    threshold = choose_threshold(parts.heldout, leak, config.precision)
    left_out = _left_out_report(network, tokenizer, parts, config, threshold)
    if stop():
        return None
    stored = DetectorFile(
        name=f"{folder.parent.name}/{folder.name}",
        model=config.model.name,
        checksum=base.checksum,
        conversion=CONVERSION,
        layers=config.layers,
        max_tokens=config.max_tokens,
        threshold=threshold,
        seed=config.seed,
        settings={k: v if isinstance(v, int | float | None) else str(v) for k, v in config.model_dump().items()},
        data=dict(sorted(Counter("/".join(filter(None, (e.source, e.augmentation))) for e in examples).items())),
        data_sha256=_digest(examples),
        heldout_sha256=_digest(parts.heldout),
        cpu_seconds=round(sum(os.times()[:2]) - started, 1),
        report=make_report(parts.heldout, leak, threshold, config.precision),
        left_out=left_out,
    )
    write_atomically(folder / DETECTOR, stored.model_dump_json(indent=1))
    return stored


def _fit(
    config: TrainingConfig,
    base: ModelFolder,
    tokenizer: Any,
    examples: Sequence[Example],
    on_progress: OnProgress,
    stop: Callable[[], bool],
    features: Features,
) -> SequenceClassifier | None:
    """Return the trained network; None if `stop` ended the training."""
    import torch

    from rl2f_core.device import resolve_device
    from rl2f_core.modeling.sequence_classifier import UNKNOWN, ClassifierShape, FitSettings, SequenceClassifier

    device, dtype = resolve_device(config.model.device, config.model.dtype)
    shape = ClassifierShape(len(CLASSES), config.layers, config.trained_layers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = SequenceClassifier.create(base.path, shape, config.rank, dtype, device)
        sequences = _token_ids(tokenizer, examples, config)
        targets = np.array(
            [0 if not e.leak else UNKNOWN if e.leak_type is None else CLASSES.index(e.leak_type) for e in examples]
        )
        if config.trained_layers == 0:
            network.known = features
            for i in range(0, len(sequences), config.batch_size):
                network.features(sequences[i : i + config.batch_size])
                on_progress("computing features", min(i + config.batch_size, len(sequences)), len(sequences), "")
                if stop():
                    return None
            network.fit_head(network.features(sequences), targets, config.head_penalty)
            return network
        settings = FitSettings(config.epochs, config.batch_size, config.learning_rate, config.weight_decay, config.seed)
        updates = config.epochs * -(-len(examples) // config.batch_size)
        average = 0.0
        for i, loss in enumerate(network.fit(sequences, targets, settings), 1):
            average = loss if i == 1 else 0.95 * average + 0.05 * loss
            on_progress("training", i, updates, f"{len(examples):,} examples, loss {average:.3f}")
            if stop():
                return None
    return network


def _reload(folder: Path, config: TrainingConfig, base: ModelFolder) -> SequenceClassifier:
    """Load the saved network as the detector does; merging the adapter changes probabilities slightly."""
    from rl2f_core.device import resolve_device
    from rl2f_core.modeling.sequence_classifier import ClassifierShape, SequenceClassifier

    device, dtype = resolve_device(config.model.device, config.model.dtype)
    return SequenceClassifier.load(base.path, folder, ClassifierShape(len(CLASSES), config.layers), dtype, device)


def _token_ids(tokenizer: Any, examples: Sequence[Example], config: TrainingConfig) -> list[tuple[int, ...]]:
    return [encode(tokenizer, render(e.environment, e.query), config.max_tokens).token_ids for e in examples]


def _leak_probabilities(
    network: SequenceClassifier, tokenizer: Any, examples: Sequence[Example], config: TrainingConfig
) -> np.ndarray:
    return 1 - network.predict(_token_ids(tokenizer, examples, config))[:, 0]


def _left_out_report(
    network: SequenceClassifier, tokenizer: Any, parts: Split, config: TrainingConfig, threshold: float
) -> dict[str, QualityReport]:
    """Score the left-out examples; those of a kind together with the held-out near-misses, because they all leak."""
    if config.leave_out is None:
        return {}
    examples = list(parts.left_out)
    if config.leave_out.startswith("kind="):
        examples += [example for example in parts.heldout if not example.leak]
    leak = _leak_probabilities(network, tokenizer, examples, config)
    return {config.leave_out: make_report(examples, leak, threshold, config.precision)}


def _digest(examples: Sequence[Example]) -> str:
    return hashlib.sha256("\n".join(sorted(example.digest() for example in examples)).encode()).hexdigest()
