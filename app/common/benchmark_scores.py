"""The default leak detectors on the shipped benchmark, computed once for each state of items and code."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl2f_core.paths import LEAK_BENCHMARK

if TYPE_CHECKING:
    from rl2f_core.leaks.benchmark.score import BenchmarkReport, Score

CODE = ("leaks", "environments")
"""Packages of the core whose code decides a verdict."""
MAX_WRONG = 100
_lock = threading.Lock()


def figures() -> dict[str, Any]:
    """Precision, recall and F1 of `exact` and `equivalent` as JSON, by split, environment, tier and kind.

    Kept in the cache folder under a hash of items and code. Items of the test split that were judged wrongly are
    counted and not listed: who reads them tunes on them. Raises `DataError` where there are no items.
    """
    from rl2f_core.leaks.benchmark import score
    from rl2f_core.model_store.store import cache_dir

    root = Path(score.__file__).resolve().parents[1]
    code = [path for name in CODE for path in (root / name).rglob("*.py")]
    kept = cache_dir() / "leak-benchmark" / f"{state([*LEAK_BENCHMARK.glob('*.jsonl'), *code, Path(__file__)])}.json"
    with _lock:  # several pages ask at once: one of them works
        try:
            return json.loads(kept.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
        except (OSError, ValueError):
            found = _compute()
        part = kept.with_name(f"{kept.name}.{os.getpid()}.part")
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
            os.replace(part, kept)
        except OSError:
            pass  # a full or closed cache folder costs a second at the next look, no more
    return found


def state(files: Iterable[Path]) -> str:
    """A hash of the files' names and contents."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def _compute() -> dict[str, Any]:
    from rl2f_core.config.leaks import LeaksConfig
    from rl2f_core.leaks.benchmark import score

    config, items = LeaksConfig(), score.read_items(LEAK_BENCHMARK)
    begun = time.perf_counter()
    found = score.score(config, items)
    seconds = time.perf_counter() - begun
    return {"detectors": [part.type for part in config.detectors], "seconds": seconds, **shown(found)}


def shown(found: BenchmarkReport) -> dict[str, Any]:
    """A report as the page takes it."""
    wrong = [each for each in found.wrong if each.item.split == "dev"]
    return {
        "overall": _score(found.overall),
        "by": {
            "split": [{"name": name, **_score(score)} for name, score in found.by_split.items()],
            "environment": [{"name": name, **_score(score)} for name, score in found.by_environment.items()],
        },
        "tiers": [
            {"name": name, "found": counts.tp, "missed": counts.fn, "false": counts.fp, "clean": counts.tn}
            for name, counts in found.by_detector.items()
        ],
        "kinds": [_kind(name, score) for name, score in found.by_kind.items()],
        "wrong": [
            {
                "environment": each.item.environment["type"], "kind": each.item.kind, "leak": each.item.leak,
                "problem": each.item.problem, "answer": each.item.answer, "attempts": list(each.item.attempts),
                "hints": list(each.item.hints), "hint": each.item.hint, "tier": each.report.detector,
                "evidence": each.report.evidence,
            }
            for each in wrong[:MAX_WRONG]
        ],
        "wrong_dev": len(wrong),
        "wrong_test": len(found.wrong) - len(wrong),
    }  # fmt: skip


def _score(score: Score) -> dict[str, Any]:
    c = score.counts
    return {
        "leaks": c.tp + c.fn,
        "near": c.fp + c.tn,
        "precision": score.precision.model_dump(),
        "recall": score.recall.model_dump(),
        "f1": score.f1,
        "share_error": score.answer_fraction_error,
    }


def _kind(name: str, score: Score) -> dict[str, Any]:
    """A kind is of leaks or of near-misses: what counts is how many were flagged."""
    from rl2f_core.stats.intervals import wilson

    c = score.counts
    n = c.tp + c.fn + c.fp + c.tn
    return {
        "name": name.removeprefix("not: "),
        "leak": c.tp + c.fn > 0,
        "n": n,
        "flagged": c.tp + c.fp,
        "share": wilson(c.tp + c.fp, n).model_dump(),
    }
