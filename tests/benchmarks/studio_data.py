"""A large workspace of synthetic runs: `events.jsonl` files with words, tokens, leaks and metrics."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from jobs.db.models import Run, RunStatus
from rl2f_core.config.loading import dump_yaml, parse_config

ENVIRONMENTS = {
    "secret_code": ["3 of 2 letters", "4 of 2 letters", "5 of 3 letters"],
    "guess_number": ["1 to 16", "1 to 100"],
    "arithmetic": ["2+2 digits", "3+3 digits", "3×2 digits"],
    "knights_knaves": ["2 people", "3 people", "4 people"],
}
WORDS = [a + b + c for a in "bdfgklmnprst" for b in ("a", "e", "io", "u") for c in ("", "n", "rt", "sk", "lo", "mir")]
"""288 made words; the n-th is about 1/n as frequent as the first."""
WEIGHTS = [1 / (i + 1) for i in range(len(WORDS))]
GROUP = 8
SEEDS = 5
"""Runs that differ only in seed and name."""


def sizes(runs: int, dialogues: int) -> list[int]:
    """How many dialogues each run has: one run a tenth of all, nine together a fifth, the others share the rest."""
    large = [dialogues // 10, *[dialogues // 45] * 9]
    rest, left = runs - len(large), dialogues - sum(large)
    return [*large, *(left // rest + (i < left % rest) for i in range(rest))]


def row(number: int, steps: int, random_: random.Random) -> Run:
    """A run's row, with a configuration that the workspace itself could have written; five seeds of each."""
    alike = random.Random((number - 1) // SEEDS)
    environment = alike.choice(list(ENVIRONMENTS))
    kind = random_.choice(["quickstart", "sweep", "ablation", "long"])
    method = alike.choice(["rl2f", "rlvr", "rl2f"])
    config = parse_config(
        {
            "name": f"{kind} {WORDS[number % len(WORDS)]} {number}",
            "seed": number % SEEDS,
            "model": {"name": alike.choice(["tiny-random", "smollm2-135m"])},
            "environment": environment,
            "stages": [
                {"name": "warmup", "method": "sft", "steps": steps},
                {"name": "rl2f", "method": method, "steps": steps, "learning_rate": alike.uniform(1e-5, 1e-3)},
            ],
        }
    )
    created = 1.7e9 + number * 3600
    statuses: list[RunStatus] = [*["succeeded"] * 7, "failed", "stopped", "interrupted"]  # type: ignore[list-item]
    status = random_.choice(statuses)
    return Run(
        name=config.name, kind="train", status=status, config=dump_yaml(config), folder=f"{number}-bench",
        environment=environment, model=config.model.name, method=method, seed=number % SEEDS, created=created,
        started=created, ended=created + 1800, detail="" if status == "succeeded" else "ended by the generator",
    )  # fmt: skip


def events(run: Run, dialogues: int, turns: int, random_: random.Random) -> Iterator[dict[str, Any]]:
    """The events of a run: steps of groups of dialogues of on average `turns` turns, with a metric after each."""
    made, step, stage = 0, 0, "warmup"
    half = max(1, dialogues // 2)
    per_step = GROUP * 4
    while made < dialogues:
        if stage == "warmup" and made >= half:
            stage, step = "rl2f", 0
        step += 1
        number = min(per_step, dialogues - made)
        for i in range(number):
            yield dialogue(run, stage, step, i // GROUP, i % GROUP, turns, random_)
        made += number
        yield metric(run, stage, step, random_)


def text(random_: random.Random, least: int, most: int) -> str:
    """Some words, the first ones of the list far more often."""
    return " ".join(random_.choices(WORDS, WEIGHTS, k=random_.randint(least, most)))


def dialogue(
    run: Run, stage: str, step: int, group: int, index: int, turns: int, random_: random.Random
) -> dict[str, Any]:
    """One dialogue event; the number of turns varies evenly around `turns`."""
    level = ENVIRONMENTS[run.environment][group % len(ENVIRONMENTS[run.environment])]
    wanted = random_.randint(max(1, turns - 3), turns + 3)
    solved = random_.random() < 0.4
    checked = random_.random() < 0.9
    task = f"{run.environment}/train/{step * 4 + group}"
    played = []
    for k in range(wanted):
        last = k == wanted - 1
        leaked = checked and random_.random() < 0.03
        tokens = [random_.randrange(49152) for _ in range(24)]
        right = last and solved
        hint = text(random_, 6, 16)
        report = {"leaked": leaked, "detector": "exact" if leaked else None, "span": [0, 4] if leaked else None,
                  "evidence": hint[:4] if leaked else "", "answer_fraction": float(leaked), "action": None}  # fmt: skip
        played.append(
            {
                "index": k,
                "attempt": f"{text(random_, 8, 24)} <answer>{random_.randrange(1000)}</answer>",
                "token_ids": tokens,
                "logprobs": [round(-random_.random(), 5) for _ in tokens],
                "finish_reason": "eos",
                "verdict": {
                    "correct": right, "score": float(right), "parsed": str(random_.randrange(1000)),
                    "detail": text(random_, 3, 8), "well_formed": True, "distance": 0.0 if right else 0.5,
                    "parts": {}, "correct_parts": [],
                },
                "rewards": [
                    {"name": "correct", "score": float(right), "weight": 1.0},
                    {"name": "format", "score": 0.0, "weight": 0.1},
                ],
                "hint": None if last else {"text": hint, "teacher": "scripted", "leak": report if checked else None,
                                           "feedback": None, "source_task": None},
                "advantage": round(random_.gauss(0, 1), 4),
            }
        )  # fmt: skip
    key = f"{stage}/{step}/{group}/{index}"
    return {
        "id": f"dialogue:train:{key}", "time": run.created + step, "type": "dialogue", "phase": "train",
        "stage": stage, "step": step, "checkpoint": None, "condition": None,
        "task": {"id": task, "environment": run.environment, "split": "train", "level": level,
                 "public": {"text": text(random_, 10, 30)}, "privileged": {"answer": random_.randrange(1000)}},
        "dialogue": {"id": key, "task_id": task, "group": f"{stage}/{step}/{group}", "index": index, "turns": played,
                     "stop_reason": "solved" if solved else "exhausted",
                     "error": "the model's answer was empty" if random_.random() < 0.002 else None,
                     "policy": f"{stage}@{step}", "seed": random_.randrange(2**31)},
    }  # fmt: skip


def metric(run: Run, stage: str, step: int, random_: random.Random) -> dict[str, Any]:
    """One metric event with about as many numbers as a real one."""
    values = {f"series/{i}": random_.random() for i in range(50)}
    values |= {"reward": random_.random(), "tokens/sampled": 3000.0, "time/rollout": 9.0, "time/update": 6.0}
    return {"id": f"metric:{stage}:{step}", "time": run.created + step, "type": "metric", "stage": stage, "step": step,
            "values": values}  # fmt: skip


def encoded(run: Run, dialogues: int, turns: int, seed: int) -> bytes:
    """The event file of a run."""
    random_ = random.Random(seed)
    return b"".join(json.dumps(event).encode() + b"\n" for event in events(run, dialogues, turns, random_))
