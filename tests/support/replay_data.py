"""Runs with dialogues to replay and label: leaking, redacted, hostile and odd ones, ingested from real event files."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workspace_copies import build_once

from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.ingest.ingester import ingest
from jobs.workspace import Workspace
from rl2f_core.config.loading import dump_yaml, parse_config
from rl2f_core.dialogue.rollout.hint_information import measure_hints
from rl2f_core.environments.base import new_task
from rl2f_core.environments.puzzles.secret_code.environment import SecretCode
from rl2f_core.environments.worlds.taxi.dynamics import GYMNASIUM_MAP
from rl2f_core.environments.worlds.taxi.environment import Taxi
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, Event, JsonlSink
from rl2f_core.types import Dialogue, FinishReason, Hint, LeakReport, RewardTerm, StopReason, Task, Turn, Verdict

CODES = SecretCode(SecretCode.Config(length=4, letters=2))
PUBLIC, PRIVILEGED = {"letters": ["A", "B"], "length": 4}, {"code": "A B A B"}
HOSTILE = (
    (
        '<script>window.pwned = "script"</script><img src=x onerror="window.pwned = \'img\'">'
        "![logo](http://example.invalid/a.png) [link](javascript:window.pwned=1) "
        "abc\u202efdp.exe\u202c zero\u200bwidth \u0000nul \ud83d\ude00 emoji"
    )
    .encode("utf-16", "surrogatepass")
    .decode("utf-16")
)


def config(**changes: Any) -> Any:
    """A small training run on secret codes."""
    stages = [{"name": "rl2f", "method": {"type": "rl2f"}, "steps": 4, "tasks_per_step": 2, "group_size": 4}]
    data = {"name": "replay", "environment": {"type": "secret_code", "length": 4, "letters": 2}, "stages": stages}
    return parse_config({**data, **changes})


def verdict(parsed: str | None, correct: bool = False) -> Verdict:
    """A verdict whose words name the answer, as real ones do."""
    detail = "1 of 4 places are right; the code is A B A B"
    return Verdict(correct=correct, score=float(correct), parsed=parsed, detail=detail, well_formed=parsed is not None)


def turn(index: int, attempt: str, parsed: str | None, hint: Hint | None = None, **more: Any) -> Turn:
    """One attempt with two reward terms and four tokens."""
    format_term = RewardTerm(name="format", score=-1, weight=0.1)
    values: dict[str, Any] = {
        "token_ids": (36, 390, 38, 2),
        "logprobs": (-0.1, -2.5, -0.01, -0.2),
        "rewards": (RewardTerm(name="correct", score=float(parsed == "A B A B")), format_term),
        "advantage": 0.25 * (index + 1),
    }  # fmt: skip
    values.update(more)
    return Turn(index=index, attempt=attempt, verdict=verdict(parsed, parsed == "A B A B"), hint=hint, **values)


def hint(text: str, leak: tuple[int, int] | None = None, **more: Any) -> Hint:
    """A checked hint; `leak` is the span that the exact tier convicts."""
    report = LeakReport(leaked=False)
    if leak is not None:
        evidence = (more.get("feedback") or text)[slice(*leak)]
        action = more.pop("action", "flag")
        report = LeakReport(
            leaked=True,
            detector="exact",
            leak_type="exact",
            span=leak,
            evidence=evidence,
            answer_fraction=1.0,
            action=action,
        )
    return Hint(text=text, teacher=more.pop("teacher", "scripted"), leak=report, **more)


def event(key: str, turns: list[Turn], step: int = 1, group: str = "g", index: int = 0, **more: Any) -> DialogueEvent:
    """A dialogue event of the stage rl2f."""
    task = Task(
        id=f"secret_code/train/{group}",
        environment="secret_code",
        split="train",
        level="4 of 2 letters",
        public=PUBLIC,
        privileged=PRIVILEGED,
    )
    turns = [*measure_hints(CODES, task, turns)]
    solved = bool(turns) and turns[-1].verdict.correct
    dialogue = Dialogue(
        id=key,
        task_id=task.id,
        group=group,
        index=index,
        turns=tuple(turns),
        stop_reason=more.pop("stop", StopReason.SOLVED if solved else StopReason.EXHAUSTED),
        error=more.pop("error", None),
        policy=f"rl2f@{step}",
        seed=index,
    )
    values: dict[str, Any] = {"phase": "train", "stage": "rl2f", "step": step, **more}
    return DialogueEvent(
        id=f"dialogue:{values['phase']}:{key}", time=1000.0 + step, task=task, dialogue=dialogue, **values
    )


def training_events() -> list[Event]:
    """Three steps of two groups of four: in each group one is solved at once, one later, one never, one leaks."""
    events: list[Event] = []
    for step in (1, 2, 3):
        for task in range(2):
            group = f"rl2f/{step}/{task}"
            words = "Correct so far: A ? ? ?"
            leaking = "The code is A B A B, so write that."
            rows = [
                [turn(0, "<answer>A B A B</answer>", "A B A B")],
                [
                    turn(0, "<answer>A A B A</answer>", "A A B A", hint(words)),
                    turn(1, "<answer>A B A B</answer>", "A B A B"),
                ],
                [
                    turn(0, "no idea", None, hint(words)),
                    turn(1, "<answer>B B B B</answer>", "B B B B", hint(words), finish_reason=FinishReason.LENGTH),
                    turn(2, "<answer>B B B B</answer>", "B B B B"),
                ],
                [
                    turn(0, "<answer>A A A A</answer>", "A A A A", hint(leaking, (12, 19))),
                    turn(1, "<answer>A B A B</answer>", "A B A B"),
                ],
            ]
            events += [event(f"{group}/{i}", turns, step, group, i) for i, turns in enumerate(rows)]
    return events


def odd_events() -> list[Event]:
    """Hostile words, a redacted hint, a dropped one, an error, a long line, an empty attempt, a contentless control."""
    original = "Say A B A B now."
    redacted = hint("Say […] now.", (4, 11), feedback=original, action="redact")
    dropped = hint("", (4, 11), feedback=original, action="drop")
    contentless = hint("That is not correct. Try again.", teacher="contentless")
    long = "x" * 100_000
    right = turn(1, "<answer>A B A B</answer>", "A B A B")
    broken = {"stop": StopReason.FAILED, "error": "ValueError: <b>broke</b>"}
    return [
        event("odd/hostile", [turn(0, HOSTILE, None, hint(HOSTILE)), turn(1, "", None)], 4, "odd/a"),
        event("odd/redacted", [turn(0, "x", None, redacted), right], 4, "odd/b"),
        event("odd/dropped", [turn(0, "x", None, dropped)], 4, "odd/c", stop=StopReason.DROPPED),
        event("odd/failed", [turn(0, "x", None)], 4, "odd/d", **broken),
        event("odd/long", [turn(0, long, None, hint(long)), turn(1, long + "y", None)], 4, "odd/e"),
        event("odd/empty", [], 4, "odd/f", stop=StopReason.FAILED, error="no room"),
        event(
            "secret_code/test/0/0",
            [turn(0, "x", None, contentless), turn(1, "y", None)],
            0,
            "secret_code/test/0",
            phase="evaluation",
            stage="evaluation",
            checkpoint="base",
            condition="contentless",
        ),
    ]


def taxi_events() -> list[DialogueEvent]:
    """An episode of the dangerous taxi that ends at a wall, with contentless hints."""
    environment = Taxi(Taxi.Config(dangerous=True, map="gymnasium"))
    public = {"map": list(GYMNASIUM_MAP), "state": [2, 1, 0, False], "destination": 3}
    task = new_task(environment, "full, dangerous", public, {})
    turns: list[Turn] = []
    for index in range(2):
        verdict = environment.verify_turn(task, [t.verdict for t in turns], "<answer>west</answer>")
        reward = RewardTerm(name="environment", score=verdict.reward or 0)
        said = None if verdict.done else Hint(text="", teacher="contentless")
        turns.append(Turn(index=index, attempt="<answer>west</answer>", verdict=verdict, rewards=(reward,), hint=said))
    dialogue = Dialogue(
        id="taxi/0", task_id=task.id, group="g", index=0, turns=tuple(turns), stop_reason=StopReason.ENDED
    )
    return [DialogueEvent.of("train", "rl2f", 1, task, dialogue)]


def add_run(db: Database, workspace: Workspace, name: str, events: Sequence[Event], **changes: Any) -> Run:
    """A finished run with these events, ingested."""
    made = config(name=name, **changes)
    folder = workspace.folder(name)

    def add() -> None:
        RunDir.create(folder, made)
        JsonlSink(folder / "events.jsonl").emit(events)
        read(db, workspace, runs.add(db, runs.of_config(made, dump_yaml(made), name, status="succeeded")))

    build_once(db, workspace, repr((name, dump_yaml(made), events)).encode("utf-8", "surrogatepass"), add)
    run = runs.find(db, folder=name)
    assert run is not None
    return run


def add_folder(db: Database, workspace: Workspace, source: Path, name: str) -> Run:
    """A copy of a run's folder, ingested."""
    shutil.copytree(source, workspace.folder(name), ignore=shutil.ignore_patterns("state", "checkpoints"))
    made = RunDir.open(workspace.folder(name)).config()
    return read(db, workspace, runs.add(db, runs.of_config(made, dump_yaml(made), name, status="succeeded")))


def read(db: Database, workspace: Workspace, run: Run) -> Run:
    """Read the run's events to their end."""
    while ingest(db, workspace, run):
        pass
    assert run.id is not None
    return runs.get(db, run.id)
