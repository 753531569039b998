"""Labeled hints for training: the dev halves of the benchmarks, and scripted hints.

No function of this module uses a line of a test half.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import Demonstrator, ScriptedHints
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.benchmark.score import KINDS, by_environment, query_of, read_items
from rl2f_core.paths import HANDWRITTEN_LEAKS, LEAK_BENCHMARK, TEACHER_WRITTEN_LEAKS
from rl2f_core.synthetic_leaks.items import LeakItem, generate
from rl2f_core.text.normalize import contains_tokens
from rl2f_core.types import LeakType, Verdict

GENERATED, HANDWRITTEN, TEACHER_WRITTEN, SCRIPTED, LABELS = (
    "generated", "handwritten", "teacher_written", "scripted", "labels",
)  # fmt: skip
_DERIVATIONS = frozenset(
    ("two_hints", "negation", "property_conjunction", "multi_hint", "intermediate_result", "verdict_on_parts")
)
_EQUIVALENTS = frozenset(
    ("spelled_out", "encoded", "difference_from_attempt", "multiple_of_attempt", "exchange_of_places", "digit_swap",
     "sub_block")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Example:
    """A hint with its label."""

    environment: Environment
    query: LeakQuery
    leak: bool
    kind: str
    """Disguise or near-miss; empty if unknown."""
    source: str
    """`generated`, `handwritten`, `teacher_written`, `scripted` or `labels`."""
    group: str
    """Examples of one task share it; they are on the same side of a split."""
    leak_type: LeakType | None = None
    """None without a leak or if unknown."""
    register: str = ""
    """Style; empty if unknown."""
    augmentation: str = ""
    """How it was derived from another example; empty for an original."""

    def digest(self) -> str:
        """Return the SHA-256 of content and label."""
        task, query = self.query.task, self.query
        content = [
            self.environment.config.model_dump(mode="json"), task.public, task.privileged, query.attempts, query.hints,
            query.hint, self.leak, self.leak_type,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def generated(folder: Path = LEAK_BENCHMARK, extra_seed: int | None = None) -> list[Example]:
    """Return the dev half of the generated benchmark, or its items of another seed."""
    if extra_seed is None:
        items = read_items(folder, "dev")
    else:
        items = [item for name, kinds in KINDS.items() for item in generate(name, kinds, ("dev",), extra_seed)]
    return [_example(item, environment, query, GENERATED) for item, environment, query in _queries(items)]


def handwritten(file: Path = HANDWRITTEN_LEAKS, source: str = HANDWRITTEN) -> list[Example]:
    """Return the dev half of a file of labeled hints, without ambiguous ones; by default the hand-written benchmark."""
    items = [item for item in read_items(file, "dev") if not item.ambiguous]
    return [_example(item, environment, query, source) for item, environment, query in _queries(items)]


def teacher_written() -> list[Example]:
    """Return the dev half of the hints of a teacher model, without ambiguous hints."""
    return handwritten(TEACHER_WRITTEN_LEAKS, TEACHER_WRITTEN)


def _queries(items: Sequence[LeakItem]) -> Iterator[tuple[LeakItem, Environment, LeakQuery]]:
    for environment, indices in by_environment(items):
        for i in indices:
            yield items[i], environment, query_of(environment, items[i])


def _example(item: LeakItem, environment: Environment, query: LeakQuery, source: str) -> Example:
    leak_type = None
    if item.leak:
        leak_type = _generated_type(item) if source == GENERATED else _handwritten_type(item.kind)
    group = f"{environment.name}/{item.problem}/{item.answer}"
    return Example(environment, query, item.leak, item.kind, source, group, leak_type, item.style)


def _generated_type(item: LeakItem) -> LeakType:
    if item.answer_fraction < 1:
        return LeakType.PARTIAL
    if item.kind in _DERIVATIONS:
        return LeakType.DERIVATION
    return LeakType.EXACT if contains_tokens(item.answer, item.hint) else LeakType.EQUIVALENT


def _handwritten_type(kind: str) -> LeakType | None:
    if kind == "literal":
        return LeakType.EXACT
    return LeakType.DERIVATION if kind in _DERIVATIONS else LeakType.EQUIVALENT if kind in _EQUIVALENTS else None


def scripted(environments: Sequence[Environment], count: int, rng: random.Random) -> Iterator[Example]:
    """Yield `count` scripted hints per environment, which never leak, after attempts of the simulated student."""
    for environment in environments:
        if not isinstance(environment, ScriptedHints) or not isinstance(environment, Demonstrator):
            continue
        for index in range(count):
            task = environment.task("train", index)
            verdicts: list[Verdict] = []
            attempts: list[str] = []
            for _ in range(rng.randint(1, 3)):
                attempt = environment.simulate_attempt(task, verdicts, rng, follow_hint=True, correct=False)
                attempts.append(attempt)
                verdicts.append(environment.verify_turn(task, verdicts, attempt))
                if verdicts[-1].done:
                    break
            hints = [environment.hint(task, verdicts[: k + 1], rng) for k in range(len(verdicts))]
            query = LeakQuery(task, hints[-1], tuple(attempts), tuple(hints[:-1]))
            yield Example(environment, query, False, "scripted", SCRIPTED, task.id)
