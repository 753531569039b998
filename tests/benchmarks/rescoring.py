"""`python -m tests.benchmarks.rescoring`: how long detectors take to read a large run again.

The dialogues are played by the engine with a scripted student that answers as the environment's imperfect student does;
then they are repeated under other names, with the answer told in some hints, until there are enough turns. Wanted (of
the project's requirements): 100,000 turns in under a minute on two cores, without a model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rl2f_core import registry
from rl2f_core.config.loading import dump_yaml, parse_config
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.rollout.build import build_engine, build_environment
from rl2f_core.dialogue.rollout.engine import RolloutRequest
from rl2f_core.environments.capabilities import Demonstrator
from rl2f_core.evaluation.rescoring.rescore import Rescore
from rl2f_core.leaks.parsing import parse_detectors
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, encode

from .report import busy

WANTED = 60.0
"""Most seconds for 100,000 turns."""
GROUP = 8
TASKS = 32


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.rescoring", description=__doc__)
    parser.add_argument("--environment", nargs="+", default=registry.names("environment"))
    parser.add_argument("--turns", type=int, default=100_000)
    parser.add_argument("--leaks", type=float, default=0.05, help="share of the hints that tell the answer")
    parser.add_argument("--detector", default="mentions")
    parser.add_argument("--penalty", type=float, default=0.5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    return parser.parse_args(argv)


def run_config(environment: str) -> BaseRun:
    """A run of one stage on an environment's default level."""
    method = {"type": "rl2f", "gamma": 0.7}
    stage = {"name": "rl2f", "method": method, "steps": 1_000_000, "tasks_per_step": 1, "group_size": GROUP}
    rollout = {"max_turns": 5, "max_new_tokens": 400, "max_seq_len": 100_000}
    return parse_config({"name": "large", "environment": environment, "stages": [stage], "rollout": rollout})


def played(config: BaseRun) -> list[DialogueEvent]:
    """A few groups, as the engine plays them."""
    environment = build_environment(config.environment)
    assert isinstance(environment, Demonstrator)
    tasks = [environment.task("train", i) for i in range(TASKS)]
    by_prompt = {environment.prompt(task.public): task for task in tasks}

    def student(prompt: str, rng: random.Random) -> str:
        task = next(task for text, task in by_prompt.items() if text in prompt)
        return environment.simulate_attempt(task, [], rng, follow_hint=False, correct=rng.random() < 0.15)

    backend = FakeBackend(FakeBackend.Config(max_model_len=10**6), script=student)
    engine = build_engine(config, backend)
    requests = [RolloutRequest(task, f"rl2f/1/{i}/{j}", f"rl2f/1/{i}", j, 100 * i + j)
                for i, task in enumerate(tasks) for j in range(GROUP)]  # fmt: skip
    return [
        DialogueEvent.of("train", "rl2f", 1, request.task, rollout.dialogue)
        for request, rollout in zip(requests, engine.run(requests), strict=True)
    ]


def write(folder: Path, config: BaseRun, turns: int, leaks: float) -> int:
    """A run's folder with at least so many turns; returns how many."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_yaml(config))
    environment, rng = build_environment(config.environment), random.Random(0)
    events = [json.loads(encode(event)) for event in played(config)]
    answers = [environment.gold_answer(environment.task("train", i)) for i in range(TASKS) for _ in range(GROUP)]
    written = copy = 0
    with open(folder / "events.jsonl", "w", encoding="utf-8") as file:
        while written < turns:
            for event, answer in zip(events, answers, strict=True):
                made_of = json.loads(json.dumps(event))
                said = made_of["dialogue"]
                made_of["id"], said["id"] = f"{event['id']}:{copy}", f"{said['id']}:{copy}"
                made_of["step"] = copy + 1
                for turn in said["turns"]:
                    if turn["hint"] and rng.random() < leaks:
                        turn["hint"]["text"] = f"{turn['hint']['text']} The answer is {answer}."
                written += len(said["turns"])
                file.write(json.dumps(made_of, separators=(",", ":"), ensure_ascii=False) + "\n")
            copy += 1
    return written


def measure(folder: Path, detector: str, penalty: float, workers: int) -> dict[str, Any]:
    """Seconds by the clock and of the processors, and what was found."""
    run_dir = RunDir.open(folder)
    before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    began = time.perf_counter()
    work = Rescore(run_dir.events_path, run_dir.config(), parse_detectors(detector), penalty, workers=workers)
    changes = sum(len(found) for _, found in work.run())
    seconds = time.perf_counter() - began
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(before, after, strict=True))
    tally = work.tally
    return {
        "turns": tally.turns, "hints": tally.hints, "flagged": tally.flagged, "changes": changes,
        "seconds": seconds, "cpu_seconds": cpu, "seconds_per_100k": seconds / tally.turns * 1e5,
        "cpu_per_100k": cpu / tally.turns * 1e5, "memory_mb": after[0].ru_maxrss / 1e3,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None, say: Callable[[str], None] = print) -> dict[str, dict[str, Any]]:
    """Each environment in turn; returns the numbers by environment."""
    args = arguments(argv)
    warning = busy(os.getloadavg()[0], os.cpu_count() or 1)
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        for name in args.environment:
            folder = Path(place) / name
            write(folder, run_config(name), args.turns, args.leaks)
            found[name] = row = measure(folder, args.detector, args.penalty, args.workers)
            verdict = "reached" if row["seconds_per_100k"] < WANTED else "NOT reached"
            say(
                f"{name}: {row['turns']:,} turns, {row['hints']:,} hints, {row['flagged']:,} flagged, "
                f"{row['changes']:,} turns change; {row['seconds']:.1f} s ({row['cpu_seconds']:.1f} s of processors), "
                f"{row['seconds_per_100k']:.1f} s for 100,000 turns; under {WANTED:.0f} wanted, {verdict}"
            )
    if warning:
        say(warning)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    main()
