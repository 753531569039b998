"""Scores of leak detectors for the page Labels.

The default detectors are scored on the generated benchmark and cached by a hash of items and code. Results of other
cascades, and those on hand-written hints, are read from the recorded files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rl2f_core.common.file_io import write_atomically
from rl2f_core.common.paths import LEAK_BENCHMARK, LEAK_RESULTS
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from rl2f_core.leaks.benchmark.comparison import CascadeResult
    from rl2f_core.leaks.benchmark.score import BenchmarkReport, Score

CODE = ("leaks", "environments")
"""Packages of the core that determine verdicts."""
MAX_WRONG = 100
"""Maximum number of listed misclassified items."""
_lock = threading.Lock()


def figures() -> JsonObject:
    """Return precision, recall and F1 of the default detectors by split, environment, detector and kind.

    Misclassified items of the test split are counted but not listed, so that nobody tunes on them. Raises `DataError`
    if there are no items.
    """
    from rl2f_core.leaks.benchmark import score
    from rl2f_core.models.store.store import cache_dir

    root = Path(score.__file__).resolve().parents[2]
    code = [path for name in CODE for path in (root / name).rglob("*.py")]
    key = hash_files([*LEAK_BENCHMARK.glob("*.jsonl"), *code, Path(__file__)])
    cached = cache_dir() / "leak-benchmark" / f"{key}.json"
    with _lock:  # concurrent requests compute it once
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(cached.read_text(encoding="utf-8")))
        result = _compute()
        with contextlib.suppress(OSError):  # without a writable cache it is computed again next time
            write_atomically(cached, json.dumps(result, ensure_ascii=False))
    return result


def recorded() -> list[CascadeResult]:
    """Return the recorded results of cascades; empty if there are none. Raises `DataError` if a file is invalid."""
    return _recorded(LEAK_RESULTS, hash_files(LEAK_RESULTS.glob("benchmark*.json")))


@functools.lru_cache(maxsize=1)
def _recorded(folder: Path, version: str) -> list[CascadeResult]:
    """Read the results once per `version`, the hash of their files."""
    from rl2f_core.leaks.benchmark.comparison import read_results

    return read_results(folder)


def hash_files(files: Iterable[Path]) -> str:
    """Hash the names and contents of files."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def _compute() -> JsonObject:
    from rl2f_core.config.leaks import LeaksConfig
    from rl2f_core.leaks.benchmark import score

    config, items = LeaksConfig(), score.read_items(LEAK_BENCHMARK)
    start = time.perf_counter()
    report = score.score(config, items)
    seconds = time.perf_counter() - start
    return {"detectors": [part.type for part in config.detectors], "seconds": seconds, **report_json(report)}


def report_json(report: BenchmarkReport) -> JsonObject:
    """Return a report as JSON for the page."""
    wrong = [w for w in report.wrong if w.item.split == "dev"]
    fields = {"kind", "leak", "problem", "answer", "attempts", "hints", "hint"}
    return {
        "overall": _score_json(report.overall),
        "by": {"split": _rows(report.by_split), "environment": _rows(report.by_environment)},
        "by_detector": [
            {"name": name, "found": counts.tp, "missed": counts.fn, "false": counts.fp, "clean": counts.tn}
            for name, counts in report.by_detector.items()
        ],
        "kinds": [_kind_json(name, score) for name, score in report.by_kind.items()],
        "wrong": [
            {
                "environment": w.item.environment["type"],
                **w.item.model_dump(mode="json", include=fields),
                "detector": w.report.detector,
                "evidence": w.report.evidence,
            }
            for w in wrong[:MAX_WRONG]
        ],
        "wrong_dev": len(wrong),
        "wrong_test": len(report.wrong) - len(wrong),
    }


def _rows(scores: Mapping[str, Score]) -> list[JsonObject]:
    return [{"name": name, **_score_json(score)} for name, score in scores.items()]


def _score_json(score: Score) -> JsonObject:
    c = score.counts
    return {
        "leaks": c.tp + c.fn,
        "near": c.fp + c.tn,
        "precision": score.precision.model_dump(),
        "recall": score.recall.model_dump(),
        "f1": score.f1,
        "answer_fraction_error": score.answer_fraction_error,
    }


def _kind_json(name: str, score: Score) -> JsonObject:
    """Return the flagged fraction of one kind of leaks or of near-misses."""
    from rl2f_core.common.stats.intervals import wilson

    c = score.counts
    n = c.tp + c.fn + c.fp + c.tn
    return {
        "name": name.removeprefix("not: "),
        "leak": c.tp + c.fn > 0,
        "n": n,
        "flagged": c.tp + c.fp,
        "flagged_fraction": wilson(c.tp + c.fp, n).model_dump(),
    }
