"""`rl2f replay`: dialogues of a run in the terminal, turn by turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.options import Root, Run, find_run
from app.commands.settings import options_of
from app.common.console import model_text, out, table
from rl2f_core import registry
from rl2f_core.errors import DataError, RL2FError, UnknownNameError, rl2f_command
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, read_dialogues
from rl2f_core.types import DEMONSTRATION, ActionChoice, Hint, JsonObject, Task, Turn

if TYPE_CHECKING:
    from rl2f_core.environments.base import Environment

STYLES = {
    "1": ("✓", "correct", "green"),
    "0": ("✗", "incorrect", "red"),
    "?": ("?", "unparsable", "yellow"),
    "-": ("–", "no verdict", "yellow"),
}
"""Sign, word and color of each `Verdict.outcome`."""


def replay(
    run: Run,
    dialogue: Annotated[str | None, typer.Option(help="Show one dialogue: its id, or its number in the list.")] = None,
    step: Annotated[int | None, typer.Option(help="Only dialogues of this step.")] = None,
    filter: JsonObject = options_of("jobs.export.datasets.settings:ExportFilter", "phase", "condition"),
    demonstrations: Annotated[bool, typer.Option("--demonstrations", help="List demonstrations, too.")] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of listed dialogues, newest last.", min=1)] = 50,
    workspace: Root = None,
) -> None:
    """List a run's dialogues, or show one turn by turn: attempt, verdict, reward, hint, leak.

    RUN may also be a JSONL file of dialogues.
    """
    from jobs.export.datasets.settings import ExportFilter

    path, condition = find_run(run, workspace), filter.get("condition")
    matching = ExportFilter(**filter, step_from=step, step_to=step, include_controls=True)
    selected = [
        (number, event)
        for number, event in enumerate(dialogues(path), 1)
        if matching.matches(event)
        and (demonstrations or dialogue or event.dialogue.policy != DEMONSTRATION)
        and (dialogue is None or dialogue in (event.dialogue.id, str(number)))
    ]
    if condition and not selected:
        known = {event.setting for event in dialogues(path)} - {None, ""}
        if condition not in known:
            raise UnknownNameError("The run has no such condition.", value=condition, known=sorted(map(str, known)))
    if dialogue is None:
        show_list(selected, limit)
        return
    if not selected:
        raise DataError(
            "The run has no such dialogue.", value=dialogue, fix=f"`{rl2f_command('replay', run)}` lists them."
        )
    environment = _environment(path)
    for _, event in selected:
        show_dialogue(event, environment)


def dialogues(run: Path) -> Iterator[DialogueEvent]:
    """Yield the dialogue events of a run's folder or of one file, in order, without invalid lines."""
    return read_dialogues(run if run.is_file() else RunDir.open(run, needs_config=False).events_path)


def _environment(run: Path) -> Environment | None:
    """Return the run's environment, which formats prompts; None if it is not available."""
    try:
        config = RunDir.open(run if run.is_dir() else run.parent).config().environment
        return registry.get("environment", config.type)(config)
    except RL2FError:
        return None


# -- the list --------------------------------------------------------------------------------------------------------
def show_list(numbered: list[tuple[int, DialogueEvent]], limit: int) -> None:
    """Print one line per dialogue, the newest last."""
    console = out()
    if not numbered:
        console.print("No dialogues.")
        return
    rows = []
    for number, event in numbered[-limit:]:
        turns = event.dialogue.turns
        leaks = sum(bool(turn.hint and turn.hint.leak and turn.hint.leak.leaked) for turn in turns)
        rows.append(
            (
                str(number),
                event.dialogue.id,
                event.phase,
                event.checkpoint or f"{event.stage} {event.step}",
                event.setting or "",
                event.task.level,
                "".join(STYLES[turn.verdict.outcome][0] for turn in turns),
                event.dialogue.stop_reason.value,
                "" if event.dialogue.reward is None else f"{event.dialogue.reward:.2f}",
                str(leaks) if leaks else "",
            )
        )
    columns = ("#", "id", "phase", "where", "condition", "level", "turns", "end", "reward", "leaks")
    console.print(table(*columns, rows=rows))
    if len(numbered) > limit:
        console.print(f"{len(numbered) - limit} earlier dialogues are not shown; increase --limit.")
    legend = ", ".join(f"{sign} {word}" for sign, word, _ in STYLES.values())
    console.print(f"\n{legend}. Show one with --dialogue NUMBER or ID.")


# -- one dialogue ----------------------------------------------------------------------------------------------------
def show_dialogue(event: DialogueEvent, environment: Environment | None = None) -> None:
    """Print the task, then attempt, verdict, reward and hint of each turn, with control characters escaped."""
    dialogue, task = event.dialogue, event.task
    out().print("─" * 72, style="dim")
    head = [dialogue.id, task.id, task.level, event.phase, f"{event.stage} step {event.step}", dialogue.policy]
    if event.setting:
        head.append(f"condition {event.setting}")
    _print(" · ".join(filter(None, head)), "bold")
    prompt, answer = _prompt_and_answer(task, environment)
    _print_block("task", prompt)
    _print_block("gold answer", answer, "dim")
    for turn in dialogue.turns:
        _show_turn(turn)
    out().print()
    ending = f"{dialogue.stop_reason.value} after {len(dialogue.turns)} turn(s)"
    _print(f"{ending}: {dialogue.error}" if dialogue.error else ending, "bold")


def _prompt_and_answer(task: Task, environment: Environment | None) -> tuple[str, str]:
    if environment is not None:
        return environment.prompt(task.public), environment.gold_answer(task)
    return json.dumps(task.public, ensure_ascii=False), json.dumps(task.privileged, ensure_ascii=False)


def _show_turn(turn: Turn) -> None:
    sign, word, color = STYLES[turn.verdict.outcome]
    facts = [f"turn {turn.index + 1}", f"{sign} {word}"]
    if turn.verdict.parsed is not None:
        facts.append(f"parsed {turn.verdict.parsed}")
    if turn.known_reward is not None:
        facts.append(f"reward {turn.reward:.2f}{_format_terms(turn)}")
    if turn.advantage is not None:
        facts.append(f"advantage {turn.advantage:+.2f}")
    if turn.finish_reason.value == "length":
        facts.append("cut off by the token limit")
    out().print()
    _print("  ".join(facts), color)
    if turn.reflection is not None:
        _print_block("reflection", turn.reflection)
    if turn.actions:
        _print_block("actions", "\n".join(map(_action_line, turn.actions)))
    _print_block("student", turn.attempt)
    if turn.verdict.detail:
        _print_block("verifier", turn.verdict.detail, "dim")
    if turn.verdict.observation is not None:
        _print_block("observation", turn.verdict.observation)
    if turn.hint is not None and (turn.hint.text or turn.verdict.observation is None):
        _show_hint(turn.hint)
    if turn.hint_bits is not None:
        determines = ", determines the answer" if turn.determines_answer else ""
        _print_block("information", f"{turn.hint_bits:.2f} bits, {turn.bits_left:.2f} left{determines}", "dim")


def _action_line(choice: ActionChoice) -> str:
    """Return a labeled action and its probability as a bar."""
    bar = "" if choice.probability is None else f"  {choice.probability:.2f} {'█' * round(20 * choice.probability)}"
    return f"{choice.label}. {choice.action}{bar}"


def _format_terms(turn: Turn) -> str:
    if len(turn.rewards) < 2:
        return ""
    return " = " + " + ".join(f"{term.name} {term.score:g}×{term.weight:g}" for term in turn.rewards)


def _show_hint(hint: Hint) -> None:
    label = "hint" if hint.source_task is None else f"hint for {hint.source_task}"
    _print_block(f"{label} ({hint.teacher})", hint.text, "cyan")
    if hint.is_replaced:
        _print_block("feedback", hint.feedback, "dim")
    if hint.error is not None:
        _print_block("teacher error", hint.error, "red")
    if hint.prompt_template is not None:
        usage = hint.usage
        tokens = "" if usage is None else f" · {usage.prompt_tokens} + {usage.completion_tokens} tokens"
        _print_block("prompt template", f"{hint.prompt_template}{tokens}", "dim")
    if hint.planted is not None:
        _print_block("planted leak", hint.planted, "bold red")
    if hint.leak is not None and hint.leak.leaked:
        leak = hint.leak
        fraction, action = f"{leak.answer_fraction:.0%} of the answer", f"action {leak.action or 'none'}"
        kind = f" ({leak.leak_type})" if leak.leak_type not in (None, leak.detector) else ""
        text = f"LEAK {leak.detector or ''}{kind} {fraction}, {action}: {leak.evidence}"
        _print_block("leak", text, "bold red")


def _print(text: str, style: str = "") -> None:
    out().print(model_text(text, style))


def _print_block(label: str, text: str, style: str = "") -> None:
    """Print a labeled text; every line is marked, so that it cannot imitate other output."""
    _print(f"  {label}", "dim")
    for line in text.split("\n") if text else ["(nothing)"]:
        _print(f"  │ {line}", style)
