"""Detector `classifier`: probability of a leak and its type, by a small language model trained on labeled hints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD, DETECTOR_REF, ComponentConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import ConfigError, ModelError
from rl2f_core.leaks.base import LeakDetector, LeakQuery
from rl2f_core.leaks.classifier.rendering import Encoding, encode, render
from rl2f_core.leaks.classifier.stored import CLASSES, DETECTOR, DetectorFile, read_detector
from rl2f_core.model_store.conversion import conversion_name
from rl2f_core.registry import register
from rl2f_core.types import LeakReport, LeakType

if TYPE_CHECKING:
    from rl2f_core.backends.model_pool import ModelPool
    from rl2f_core.modeling.sequence_classifier import SequenceClassifier


@dataclass(frozen=True)
class LoadedClassifier:
    """A trained classifier in memory."""

    stored: DetectorFile
    tokenizer: Any
    network: SequenceClassifier


@register("leak_detector")
class ClassifierDetector(LeakDetector):
    """Flag a hint whose probability of a leak reaches the detector's threshold.

    Every report has a `leak_probability`. `leak_type` is the most probable type. The span is the contiguous region of
    tokens with the highest gradient × input. `answer_fraction` is the probability, given a leak, that it reveals the
    whole answer.
    """

    requires_model = True

    class Config(ComponentConfig):
        """A classifier trained on labeled hints (`rl2f leaks train`)."""

        type: Literal["classifier"] = "classifier"
        """Name of the detector."""
        path: str = Field("", json_schema_extra={**BASIC_FIELD, **DETECTOR_REF})
        """Folder of the trained detector, e.g. `detectors/leaks/v1`; required."""
        threshold: float | None = Field(None, gt=0, le=1)
        """Probability from which a hint is flagged; None is the detector's own."""
        device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
        """Device; auto is the first available of cuda, mps, cpu."""

    config: Config

    def __init__(self, config: Config, environment: Environment, models: ModelPool | None = None) -> None:
        super().__init__(config, environment, models)
        if not config.path:
            raise ConfigError(
                "Detector classifier needs the folder of a trained detector.",
                fix="Set its path, or train one: rl2f leaks train",
            )
        self.folder = Path(config.path).expanduser().resolve()
        self.stored = read_detector(self.folder)
        self.threshold = self.stored.threshold if config.threshold is None else config.threshold

    def check(self, query: LeakQuery) -> LeakReport:
        """Check one hint."""
        return self.check_batch([query])[0]

    def check_batch(self, queries: Sequence[LeakQuery]) -> list[LeakReport]:
        """Check hints in batches of similar length."""
        if not queries:
            return []
        loaded = self.load()
        encodings = [
            encode(loaded.tokenizer, render(self.environment, query), self.stored.max_tokens) for query in queries
        ]
        probabilities = loaded.network.predict([encoding.token_ids for encoding in encodings])
        return [
            self._report(loaded, query, encoding, row)
            for query, encoding, row in zip(queries, encodings, probabilities, strict=True)
        ]

    def load(self) -> LoadedClassifier:
        """Return the loaded classifier; all detectors of a process with this folder share it."""
        stamp = (self.folder / DETECTOR).stat().st_mtime_ns
        return _load(str(self.folder), stamp, self.config.device)

    def _report(
        self, loaded: LoadedClassifier, query: LeakQuery, encoding: Encoding, row: NDArray[np.float64]
    ) -> LeakReport:
        p = float(1 - row[0])
        if p < self.threshold:
            return LeakReport(leaked=False, leak_probability=p, leak_threshold=self.threshold)
        leak_type = CLASSES[1 + int(row[1:].argmax())]
        partial = float(row[CLASSES.index(LeakType.PARTIAL)] / row[1:].sum())
        span = find_span(encoding, loaded.network.attribute(encoding.token_ids))
        quoted = f": “{query.hint[slice(*span)]}”" if span else ""
        return LeakReport(
            leaked=True,
            detector=self.name,
            leak_type=leak_type,
            leak_probability=p,
            leak_threshold=self.threshold,
            span=span,
            evidence=f"probability {p:.2f}, threshold {self.threshold:.2f} ({self.stored.name}){quoted}",
            answer_fraction=max(1 - partial, 1e-6),
        )


def find_span(encoding: Encoding, attribution: NDArray[np.float64]) -> tuple[int, int] | None:
    """Return the character span of the hint with the highest attribution; None without tokens of the hint.

    The span is the contiguous run of tokens with the largest sum of |attribution| minus its mean over the hint.
    """
    n = len(encoding.offsets)
    if not n:
        return None
    scores = np.abs(attribution[encoding.hint_start : encoding.hint_start + n])
    excess = scores - scores.mean()
    sums = np.concatenate([[0.0], np.cumsum(excess)])
    runs = [(float(sums[j + 1] - sums[i]), i, j) for i in range(n) for j in range(i, n)]
    _, first, last = max(runs, key=lambda run: run[0])
    return encoding.offsets[first][0], encoding.offsets[last][1]


@lru_cache(maxsize=2)
def _load(folder: str, stamp: int, device: str) -> LoadedClassifier:
    """Load a classifier; `stamp` is the time of its file, so that a new version is loaded again."""
    from transformers import AutoTokenizer

    from rl2f_core.device import resolve_device
    from rl2f_core.model_store.store import get_model
    from rl2f_core.modeling.sequence_classifier import ClassifierShape, SequenceClassifier

    path = Path(folder)
    stored = read_detector(path)
    base = get_model(conversion_name(stored.model, stored.conversion))
    if base.checksum != stored.checksum:
        raise ModelError("The base model is not the one that the detector was trained on.", value=stored.model)
    resolved, dtype = resolve_device(device)
    shape = ClassifierShape(len(CLASSES), stored.layers)
    network = SequenceClassifier.load(base.path, path, shape, dtype, resolved)
    return LoadedClassifier(stored, AutoTokenizer.from_pretrained(base.path), network)
