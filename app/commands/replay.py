"""`rl2f replay`: the dialogues of a run, turn by turn, in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rl2f_core.run.events import DialogueEvent
    from rl2f_core.types import Hint, Task, Turn

RIGHT, WRONG, UNPARSABLE = "✓", "✗", "?"


def replay(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a JSONL file of its dialogues.")],
    dialogue: Annotated[str | None, typer.Option(help="Show one dialogue: its id, or its number in the list.")] = None,
    step: Annotated[int | None, typer.Option(help="Only dialogues of this step.")] = None,
    phase: Annotated[str | None, typer.Option(help="Only train, preflight, evaluation, fork or distill.")] = None,
    condition: Annotated[str | None, typer.Option(help="Only this condition of an evaluation.")] = None,
    limit: Annotated[int, typer.Option(help="Lines of the list; the newest are shown.", min=1)] = 50,
) -> None:
    """List a run's dialogues, or show one turn by turn: attempt, verdict, reward, hint, leak."""
    from rl2f_core.errors import DataError

    wanted = [
        (number, event)
        for number, event in enumerate(dialogues(run), 1)
        if (step is None or event.step == step)
        and (phase is None or event.phase == phase)
        and (condition is None or event.setting == condition)
        and (dialogue is None or dialogue in (event.dialogue.id, str(number)))
    ]
    if dialogue is None:
        show_list(wanted, limit)
        return
    if not wanted:
        raise DataError("The run has no such dialogue.", value=dialogue, fix=f"`rl2f replay {run}` lists them.")
    environment = _environment(run)
    for _, event in wanted:
        show_dialogue(event, environment)


def dialogues(run: Path) -> Iterator[DialogueEvent]:
    """The dialogue events of a run's folder or of one file, in order; broken lines are left out."""
    from rl2f_core.run.directory import RunDir
    from rl2f_core.run.events import DialogueEvent, read_events

    path = run if run.is_file() else RunDir.open(run).events_path
    for event in read_events(path):
        if isinstance(event, DialogueEvent):
            yield event


def _environment(run: Path) -> Any | None:
    """The run's environment, to show problems as the student read them; None where it cannot be had."""
    from rl2f_core import registry
    from rl2f_core.errors import RL2FError
    from rl2f_core.run.directory import RunDir

    folder = run if run.is_dir() else run.parent
    try:
        config = RunDir.open(folder).config().environment
        component = registry.get("environment", config.type)
        return component(config)
    except RL2FError:
        return None


# -- the list --------------------------------------------------------------------------------------------------------
def show_list(numbered: list[tuple[int, DialogueEvent]], limit: int) -> None:
    """One line for each dialogue, the newest last."""
    from app.common.console import out, table

    console = out()
    if not numbered:
        console.print("No dialogues.")
        return
    rows = []
    for number, event in numbered[-limit:]:
        turns = event.dialogue.turns
        leaks = sum(bool(turn.hint and turn.hint.leak and turn.hint.leak.leaked) for turn in turns)
        where = f"{event.checkpoint or event.stage}{'' if event.checkpoint else f' {event.step}'}"
        rows.append(
            (
                str(number),
                event.dialogue.id,
                event.phase,
                where,
                event.setting or "",
                event.task.level,
                "".join(map(sign, turns)),
                event.dialogue.stop_reason.value,
                f"{sum(turn.reward for turn in turns):.2f}",
                str(leaks) if leaks else "",
            )
        )
    columns = ("#", "id", "phase", "where", "condition", "level", "turns", "end", "reward", "leaks")
    console.print(table(*columns, rows=rows))
    if len(numbered) > limit:
        console.print(f"{len(numbered) - limit} earlier ones are left out; --limit shows more.")
    console.print(f"\n{RIGHT} right, {WRONG} wrong, {UNPARSABLE} unparsable. Show one with --dialogue NUMBER or ID.")


def sign(turn: Turn) -> str:
    """One character for a verdict."""
    if turn.verdict.correct:
        return RIGHT
    return UNPARSABLE if turn.verdict.parsed is None else WRONG


# -- one dialogue ----------------------------------------------------------------------------------------------------
def show_dialogue(event: DialogueEvent, environment: Any | None = None) -> None:
    """Problem, then attempt, verdict, reward and hint of each turn. All text of models and tasks is shown as it is."""
    from app.common.console import model_text, out

    console = out()
    dialogue, task = event.dialogue, event.task
    console.print("─" * 72, style="dim")
    head = [dialogue.id, task.id, task.level, event.phase, f"{event.stage} step {event.step}", dialogue.policy]
    if event.setting:
        head.append(f"condition {event.setting}")
    console.print(model_text(" · ".join(filter(None, head)), "bold"))
    problem, answer = _texts(task, environment)
    _block(console, "problem", problem)
    _block(console, "answer", answer, "dim")
    for turn in dialogue.turns:
        console.print()
        mark = sign(turn)
        word = {RIGHT: "right", WRONG: "wrong", UNPARSABLE: "unparsable"}[mark]
        colour = {RIGHT: "green", WRONG: "red", UNPARSABLE: "yellow"}[mark]
        facts = [f"turn {turn.index + 1}", f"{mark} {word}", f"reward {turn.reward:.2f}{_terms(turn)}"]
        if turn.verdict.parsed is not None:
            facts.insert(2, f"parsed {turn.verdict.parsed}")
        if turn.advantage is not None:
            facts.append(f"advantage {turn.advantage:+.2f}")
        if turn.finish_reason.value == "length":
            facts.append("cut off by the token limit")
        console.print(model_text("  ".join(facts), colour))
        _block(console, "student", turn.attempt)
        if turn.verdict.detail:
            _block(console, "verifier", turn.verdict.detail, "dim")
        if turn.hint is not None:
            _show_hint(console, turn.hint)
    console.print()
    ending = f"{dialogue.stop_reason.value} after {len(dialogue.turns)} turn(s)"
    console.print(model_text(f"{ending}: {dialogue.error}" if dialogue.error else ending, "bold"))


def _texts(task: Task, environment: Any | None) -> tuple[str, str]:
    import json

    if environment is not None:
        return environment.prompt(task.public), environment.gold_answer(task)
    return json.dumps(task.public, ensure_ascii=False), json.dumps(task.privileged, ensure_ascii=False)


def _terms(turn: Turn) -> str:
    if len(turn.rewards) < 2:
        return ""
    return " = " + " + ".join(f"{term.name} {term.score:g}×{term.weight:g}" for term in turn.rewards)


def _show_hint(console: Any, hint: Hint) -> None:
    label = "hint" if hint.source_task is None else f"hint for {hint.source_task}"
    _block(console, f"{label} ({hint.teacher})", hint.text, "cyan")
    if hint.feedback is not None and hint.feedback != hint.text:
        _block(console, "as the teacher wrote it", hint.feedback, "dim")
    if hint.error is not None:
        _block(console, "no hint", hint.error, "red")
    if hint.prompt_template is not None:
        usage = hint.usage
        spent = "" if usage is None else f" · {usage.prompt_tokens} + {usage.completion_tokens} tokens"
        _block(console, "asked by", f"{hint.prompt_template}{spent}", "dim")
    if hint.leak is not None and hint.leak.leaked:
        leak = hint.leak
        fraction, action = f"{leak.answer_fraction:.0%} of the answer", f"action {leak.action or 'none'}"
        text = f"LEAK {leak.detector or ''} {fraction}, {action}: {leak.evidence}"
        _block(console, "leak", text, "bold red")


def _block(console: Any, label: str, text: str, style: str = "") -> None:
    """A labelled text; every line of it is marked, so that it cannot pass for a line of ours."""
    from app.common.console import model_text

    console.print(model_text(f"  {label}", "dim"))
    for line in _split(text):
        console.print(model_text(f"  │ {line}", style))


def _split(text: str) -> Iterable[str]:
    return text.split("\n") if text else ["(nothing)"]
