"""Examples for the weights of detector `mentions`: dev halves of the benchmarks, scripted hints, and people's labels.

The default weights are written by

    rl2f leaks fit --mrbench MRBench_V2.json --default
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rl2f_core import registry
from rl2f_core.common.paths import DATA
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import Demonstrator, ScriptedHints
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.benchmark.comparison import BENCHMARKS
from rl2f_core.leaks.benchmark.score import LeakItem, by_environment, query_of, read_items
from rl2f_core.leaks.mentions.features import FEATURES, Dialogue, vectors
from rl2f_core.leaks.mentions.finder import MentionFinder
from rl2f_core.leaks.mentions.model import Example
from rl2f_core.types import Verdict

TUTORS = ("MathDial", "Bridge")
"""Sources of the dialogues of MRBench."""
LABELS, SCRIPTED = "labels", "scripted"
SENTENCES = DATA / "leaks" / "sentences.json"
BENCHMARK_WEIGHT = 0.1
"""Weight of a hint of the shipped benchmarks; hints of tutors and labels of people have weight 1."""


def example_of(finder: MentionFinder, query: LeakQuery, leak: bool, group: str, source: str, weight: float) -> Example:
    """Return a labeled hint with the features of its mentions of the whole answer."""
    found = [mention for mention in finder.mentions(query) if mention.fraction >= 1]
    values = vectors(Dialogue(finder.environment, query), found)
    return Example(np.array(values).reshape(len(found), len(FEATURES)), leak, group, source, weight)


def item_examples(items: Sequence[LeakItem], source: str, weight: float) -> Iterator[Example]:
    """Yield the examples of benchmark items, without ambiguous ones and those that reveal only a part."""
    for environment, indices in by_environment(items):
        finder = MentionFinder(environment)
        for item in (items[i] for i in indices):
            if not item.ambiguous and not item.is_partial:
                group = f"{item.problem}/{item.answer}"
                yield example_of(finder, query_of(environment, item), item.leak, group, source, weight)


def own_examples() -> list[Example]:
    """Return the dev halves of the shipped benchmarks, and `sentence_examples`."""
    items = [
        example
        for name, path in BENCHMARKS.items()
        for example in item_examples(read_items(path, "dev"), name, BENCHMARK_WEIGHT)
    ]
    return items + sentence_examples()


def sentence_examples() -> list[Example]:
    """Return sentences that assert 85 as the answer, or only mention it, for the problem "What is 85 + 0?"."""
    environment = registry.get("environment", "arithmetic")
    finder = MentionFinder(environment(environment.Config()))
    task = finder.environment.task_from_gold("What is 85 + 0?", "85")
    sentences: dict[str, list[str]] = json.loads(SENTENCES.read_text(encoding="utf-8"))
    return [
        example_of(finder, LeakQuery(task, text), kind == "asserted", text, "sentences", BENCHMARK_WEIGHT)
        for kind, texts in sentences.items()
        for text in texts
    ]


def tutor_examples(file: Path) -> list[Example]:
    """Return the dev half of MRBench; see `benchmark.mrbench`."""
    from rl2f_core.leaks.benchmark.mrbench import read_mrbench

    items = [item for item in read_mrbench(file) if item.split == "dev" and not item.ambiguous]
    return [
        example._replace(group=item.id.rsplit("/", 1)[0], also=("tutors", f"tutor {item.style}"), source=item.kind)
        for item, example in zip(items, item_examples(items, "tutors", 1.0), strict=True)
    ]


def scripted_examples(count: int) -> list[Example]:
    """Return `count` scripted hints per environment, which never leak, after attempts of the simulated student."""
    rng, examples = random.Random(0), []
    for name in registry.names("environment"):
        cls: type[Environment] = registry.get("environment", name)
        if issubclass(cls, ScriptedHints) and issubclass(cls, Demonstrator):
            try:
                environment = cls(cls.Config())
            except ValueError:  # needs settings, e.g. a file
                continue
            finder = MentionFinder(environment)
            for query in scripted_queries(environment, count, rng):
                examples.append(example_of(finder, query, False, f"{name}/{query.task.id}", SCRIPTED, BENCHMARK_WEIGHT))
    return examples


def scripted_queries(environment: Environment, count: int, rng: random.Random) -> Iterator[LeakQuery]:
    """Yield scripted hints on distinct training tasks."""
    assert isinstance(environment, ScriptedHints) and isinstance(environment, Demonstrator)
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
        yield LeakQuery(task, hints[-1], tuple(attempts), tuple(hints[:-1]))
