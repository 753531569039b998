"""Runs for tests of the pages Run and Compare: real folders, with events of the engine's kinds and a real report."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from workspace_copies import build_once

from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.ingest.ingester import reindex
from jobs.workspace import Workspace
from rl2f_core import registry
from rl2f_core.config.loading import dump_yaml, parse_config
from rl2f_core.evaluation.report import EvaluatedTasks, build_report
from rl2f_core.run.events import CheckpointEvent, DialogueEvent, JsonlSink, LogEvent, MetricEvent, StatusEvent
from rl2f_core.types import Dialogue, Hint, RewardTerm, StopReason, Task, Turn, Verdict

BEGAN = 1_790_000_000.0
TURNS, TASKS, STEPS, GROUPS, SIZE = 3, 10, 6, 2, 4
SHARES = {("base", "hints"): 0.2, ("base", "contentless"): 0.15, ("rl@6", "hints"): 0.8, ("rl@6", "contentless"): 0.3}
CONFIG: dict[str, Any] = {
    "name": "small",
    "model": {"name": "tiny-random", "device": "cpu"},
    "environment": {"type": "guess_number", "size": 8},
    "rollout": {"max_turns": TURNS, "max_new_tokens": 12},
    "evaluation": {"num_tasks": TASKS, "conditions": ["hints", "contentless"], "seed": 7},
    "stages": [
        {"name": "warm", "method": "sft", "steps": 2, "tasks_per_step": 2, "group_size": 1},
        {"name": "rl", "method": "rl2f", "steps": STEPS, "tasks_per_step": GROUPS, "group_size": SIZE},
    ],
}


def dialogue(
    name: str, task: Task, solved_at: int | None, rng: random.Random, group: str = "g", index: int = 0
) -> Dialogue:
    """A dialogue that is solved at a turn, or never."""
    turns = []
    for k in range(solved_at or TURNS):
        right = k + 1 == solved_at
        hint = None if right or k + 1 == TURNS else Hint(text="Too low.", teacher="scripted")
        parsed = str(rng.randrange(8))
        verdict = Verdict(
            correct=right, score=float(right), parsed=parsed, well_formed=True, distance=0.0 if right else 0.5
        )
        rewards = (RewardTerm(name="answer", score=float(right)),)
        turns.append(Turn(index=k, attempt=f"<answer>{parsed}</answer>", token_ids=(1, 2, 3), logprobs=(-0.1,) * 3,
                          verdict=verdict, rewards=rewards, hint=hint))  # fmt: skip
    stop = StopReason.SOLVED if solved_at else StopReason.EXHAUSTED
    return Dialogue(id=name, task_id=task.id, group=group, index=index, turns=tuple(turns), stop_reason=stop)


def add_run(
    db: Database, workspace: Workspace, folder: str, *, seed: int = 0, evaluated: bool = True, report: bool = True,
    status: Sequence[str] = ("running", "succeeded"), shift: float = 0.0, **changes: Any,
) -> Run:  # fmt: skip
    """A training run as its folder holds it, read into the database.

    Args:
        seed: Of the run, and of chance.
        evaluated: Its evaluation's dialogues are there.
        report: The report is written too.
        status: What it said of itself, in order.
        shift: Added to rl@6's share of solved tasks with hints.
        changes: Keys of the configuration to replace.
    """
    said = {"seed": seed, "evaluated": evaluated, "report": report, "status": status, "shift": shift}
    settings = json.dumps({**said, "changes": changes})

    def add() -> None:
        for name, data in _files(settings).items():
            path = workspace.folder(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        reindex(db, workspace, [folder])

    build_once(db, workspace, f"{folder} {settings}".encode(), add)
    run = runs.find(db, folder=folder)
    assert run is not None
    return run


@functools.cache
def _files(settings: str) -> dict[str, bytes]:
    """The files of a run with these arguments of `add_run`, as JSON: made once, because many tests use the same."""
    with TemporaryDirectory() as folder:
        path = Path(folder)
        _write(path, **json.loads(settings))
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def _write(
    path: Path, seed: int, evaluated: bool, report: bool, status: Sequence[str], shift: float, changes: dict[str, Any]
) -> None:
    config = parse_config({**CONFIG, "seed": seed, **changes})
    (path / "config.yaml").write_text(dump_yaml(config))
    (path / "meta.json").write_text(json.dumps({"created": BEGAN, "seed": seed, "git": "abc123", "python": "3.11.7",
                                                "machine": "Linux", "packages": {"torch": "2.13.0"}}))  # fmt: skip
    environment = registry.get("environment", "guess_number")(config.environment)  # type: ignore[attr-defined]
    rng = random.Random(seed)
    sink = JsonlSink(path / "events.jsonl")
    sink.emit([StatusEvent(id="status:1", time=BEGAN, status=status[0])])  # type: ignore[arg-type]
    for step in (1, 2):
        values = {"loss": 1.5 / step, "loss/ce": 1.5 / step, "entropy": 2.0, "reward": 1.0, "time/update": 1.0,
                  "tokens/demonstrated": 90.0}  # fmt: skip
        sink.emit([MetricEvent(id=f"metric:warm:{step}", time=BEGAN + step, stage="warm", step=step, values=values)])
    for step in range(1, STEPS + 1):
        _train(sink, environment, step, rng)
    sink.emit([CheckpointEvent(id="checkpoint:rl@6", time=BEGAN + 60, name="rl@6", stage="rl", step=6,
                               path="checkpoints/rl@6", sha256="0" * 64)])  # fmt: skip
    if evaluated:
        played = _evaluate(sink, environment, rng, shift)
        if report:
            made = build_report(environment, played, TURNS, EvaluatedTasks(TASKS, 1, "8 numbers", seed=seed))
            (path / "evaluation").mkdir()
            (path / "evaluation" / "report.json").write_text(made.model_dump_json())
            for row in made.rows:
                stage = f"evaluation:{row.checkpoint}:{row.condition}"
                sink.emit([MetricEvent(id=f"metric:{stage}", stage=stage, step=0, values=row.metrics.flat())])
    sink.emit([LogEvent(id="note", time=BEGAN + 70, text="All went well.")])
    if len(status) > 1:
        sink.emit([StatusEvent(id="status:2", time=BEGAN + 80, status=status[1], detail="")])  # type: ignore[arg-type]


def _train(sink: JsonlSink, environment: Any, step: int, rng: random.Random) -> None:
    solved = 0
    for g in range(GROUPS):
        task = environment.task("train", step * GROUPS + g)
        for i in range(SIZE):
            at = rng.choice([None, 1, 2, 3])
            solved += at is not None
            made = dialogue(f"rl/{step}/{g}/{i}", task, at, rng, f"rl/{step}/{g}", i)
            sink.emit([DialogueEvent.of("train", "rl", step, task, made)])
    share = solved / (GROUPS * SIZE)
    values = {
        "reward": share, "cum_acc/1": share / 4, "cum_acc/2": share / 2, "cum_acc/3": share, "plasticity": 0.8,
        "repeated_answer_rate": 0.2, "improving_change_rate": 0.6, "retention": 0.7, "leak_rate": 0.0,
        "attempt_tokens": 9.0,
        "groups/frac_mixed": 0.5, "groups/frac_all_correct": 0.25, "groups/frac_all_incorrect": 0.25,
        "frac_reward_zero_std": 0.5, "approx_kl": 1e-5, "entropy": 0.4, "grad_norm": 0.1 * step,
        "time/rollout": 2.0, "time/update": 3.0, "tokens/sampled": 50.0, "tokens_per_second/rollout": 25.0,
    }  # fmt: skip
    sink.emit([MetricEvent(id=f"metric:rl:{step}", time=BEGAN + 5 + 5 * step, stage="rl", step=step, values=values)])


def _evaluate(
    sink: JsonlSink, environment: Any, rng: random.Random, shift: float
) -> dict[str, dict[str, list[Dialogue]]]:
    played: dict[str, dict[str, list[Dialogue]]] = {}
    for (checkpoint, control), share in SHARES.items():
        share += shift if (checkpoint, control) == ("rl@6", "hints") else 0.0
        for i in range(TASKS):
            task = environment.task("test", i)
            made = dialogue(f"{task.id}/0", task, rng.choice([1, 2, 3]) if rng.random() < share else None, rng)
            played.setdefault(checkpoint, {}).setdefault(control, []).append(made)
            sink.emit([DialogueEvent(id=f"dialogue:evaluation:{checkpoint}:{control}:{made.id}", phase="evaluation",
                                     stage="evaluation", step=0, checkpoint=checkpoint, condition=control, task=task,
                                     dialogue=made)])  # fmt: skip
    return played
