"""Measure a model as the teacher alone: hints on wrong attempts of the simulated student, by task and prompt style.

For each task and style: the fractions of true and of leaking hints, bits, tokens and seconds for each hint. Hints whose
statements cannot be read count in neither fraction of truth. The hints of each batch are written to `--out` at once, so
an interrupted measurement continues.

    python -m tests.benchmarks.teacher --model qwen2.5-coder-1.5b --out teacher.json
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from rl2f_core import registry
from rl2f_core.common.file_io import write_atomically
from rl2f_core.common.stats.intervals import wilson
from rl2f_core.config.model import ModelConfig
from rl2f_core.dialogue.rollout.hint_information import measure_hints
from rl2f_core.dialogue.teachers.base import FeedbackRequest, Teacher
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import Demonstrator
from rl2f_core.evaluation.formatting import interval_text
from rl2f_core.leaks.base import LeakQuery, make_detectors, run_cascade
from rl2f_core.leaks.parsing import parse_detectors
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.types import Hint, JsonObject, Turn

TASKS: dict[str, JsonObject] = {"secret_code": {"length": 4, "letters": 3}, "arithmetic": {}}
STYLES = ("socratic", "first_error", "facts")
DETECTORS = ("exact", "mentions")
BATCH = 16


def requests(environment: Environment, count: int) -> Iterator[FeedbackRequest]:
    """Yield requests after one to three wrong attempts on different training tasks."""
    assert isinstance(environment, Demonstrator)
    index = found = 0
    while found < count:
        task, rng = environment.task("train", index), random.Random(f"teacher/{index}")
        turns: list[Turn] = []
        for k in range(1 + index % 3):
            verdicts = [turn.verdict for turn in turns]
            attempt = environment.simulate_attempt(task, verdicts, rng, follow_hint=False, correct=False)
            turns.append(Turn(index=k, attempt=attempt, verdict=environment.verify(task, attempt)))
        index += 1
        if not any(turn.verdict.correct for turn in turns):
            found += 1
            yield FeedbackRequest(task, tuple(turns), seed=index)


def measure(environment: Environment, teacher: Teacher, asked: Sequence[FeedbackRequest]) -> Iterator[list[JsonObject]]:
    """Yield batches of rows, one for each hint: texts, statements, findings of all detectors, tokens and seconds."""
    cascades = {name: make_detectors(parse_detectors(name), environment) for name in DETECTORS}
    for begin in range(0, len(asked), BATCH):
        batch, start = asked[begin : begin + BATCH], time.perf_counter()
        messages = teacher.feedback(batch)
        seconds = (time.perf_counter() - start) / len(batch)
        attempts = [tuple(turn.attempt for turn in request.turns) for request in batch]
        queries = [LeakQuery(r.task, m.text, a) for r, m, a in zip(batch, messages, attempts, strict=True)]
        found = {name: run_cascade(cascade, queries) for name, cascade in cascades.items()}
        rows: list[JsonObject] = []
        for i, (request, message) in enumerate(zip(batch, messages, strict=True)):
            hint = Hint(text=message.text, teacher="llm")
            *before, last = request.turns
            turn = measure_hints(environment, request.task, [*before, last.model_copy(update={"hint": hint})])[-1]
            tokens = message.usage.completion_tokens if message.usage else 0
            rows.append({
                "task": request.task.id, "problem": environment.prompt(request.task.public),
                "answer": environment.gold_answer(request.task), "attempts": attempts[i], "hint": message.text,
                "error": message.error, "true": turn.hint_true, "bits": turn.hint_bits,
                **{name: reports[i].leaked for name, reports in found.items()}, "tokens": tokens, "seconds": seconds,
            })  # fmt: skip
        yield rows


def summary(rows: Sequence[JsonObject]) -> JsonObject:
    """Return fractions with their intervals, and means over all hints; unread hints have 0 bits."""
    read = [row["true"] for row in rows if row["true"] is not None]
    return {
        "hints": len(rows),
        "read": interval_text(wilson(len(read), len(rows))),
        "true": interval_text(wilson(sum(read), len(read))),
        **{name: interval_text(wilson(sum(row[name] for row in rows), len(rows))) for name in DETECTORS},
        **{name: round(fmean(row[name] or 0.0 for row in rows), 3) for name in ("bits", "tokens", "seconds")},
    }


def main(argv: Sequence[str] | None = None) -> JsonObject:
    """Measure what `--out` lacks of all tasks and styles, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.teacher", description=__doc__)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--hints", type=int, default=200, help="hints of each task and style")
    parser.add_argument("--out", type=Path, required=True, help="hints and summaries as JSON")
    args = parser.parse_args(argv)
    done: JsonObject = json.loads(args.out.read_text()) if args.out.exists() else {}
    models = ModelPool(ModelConfig(name=args.model), registry.get("backend", "hf").Config())
    for name, settings in TASKS.items():
        kind = registry.get("environment", name)
        environment = kind(kind.Config(**settings))
        for style in STYLES:
            part, llm = f"{name}, {style}", registry.get("teacher", "llm")
            rows = done.get(part, {}).get("rows", [])
            teacher = llm(llm.Config(style=style), environment, models)
            for batch in measure(environment, teacher, list(requests(environment, args.hints))[len(rows) :]):
                rows = [*rows, *batch]
                done[part] = {**summary(rows), "rows": rows}
                write_atomically(args.out, json.dumps(done, indent=1))
            print(part, {key: value for key, value in done[part].items() if key != "rows"}, flush=True)
    return done


if __name__ == "__main__":
    main()
