"""`rl2f fork` and `rl2f hint-value`: what if the hint had been different?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app.commands.train import Out, Sets

if TYPE_CHECKING:
    from rl2f_core.run.directory import RunDir
    from rl2f_core.run.events import DialogueEvent

Run = Annotated[Path | None, typer.Argument(help="The run's folder; not needed with --resume.")]
Arms = Annotated[
    list[str] | None,
    typer.Option(
        "--arm",
        help="original, empty, contentless, shuffled, misleading, edited:TEXT or teacher:NAME; may be repeated. "
        "Default: original, contentless, shuffled, misleading.",
    ),
]
Checkpoints = Annotated[
    list[str] | None,
    typer.Option("--checkpoint", help="base, a checkpoint of the run, or an adapter's folder; may be repeated."),
]
LaterHints = Annotated[
    Literal["run", "arm", "contentless"],
    typer.Option(help="Who hints later on: the run's teacher in every arm, the arm's own, or nobody."),
]
Seed = Annotated[int, typer.Option(help="Seed of the samples.", min=0)]
Resume = Annotated[Path | None, typer.Option(help="Go on with the one in this folder.")]


def fork(
    run: Run = None,
    dialogue: Annotated[
        str | None, typer.Argument(help="Its id, its event's id, or its number in `rl2f replay RUN`.")
    ] = None,
    turn: Annotated[int, typer.Option(help="The attempt after which the hint changes, counted from 1.", min=1)] = 1,
    arm: Arms = None,
    checkpoint: Checkpoints = None,
    samples: Annotated[int, typer.Option(help="Dialogues of each arm, with shared seeds.", min=1)] = 16,
    attempts: Annotated[
        int | None, typer.Option(help="Attempts after the fork; by default what the dialogue had left.", min=1)
    ] = None,
    later_hints: LaterHints = "run",
    seed: Seed = 0,
    sets: Sets = None,
    out: Out = None,
    resume: Resume = None,
) -> None:
    """Take up a stored dialogue again after one of its attempts, under other hints; the original stays as it is.

    Every arm and checkpoint plays the same number of samples with the same seeds; the report gives each arm's solve
    rate and its paired difference to contentless. Without --checkpoint the one that played the dialogue speaks, or the
    nearest that was saved.
    """
    from app.commands.train import execute_in
    from rl2f_core.counterfactual.arms import parse_arm
    from rl2f_core.counterfactual.config import choose_checkpoints
    from rl2f_core.errors import ConfigError
    from rl2f_core.run.directory import RunDir
    from rl2f_core.run_kinds.fork import fork_config

    if resume is not None:
        execute_in(RunDir.open(resume))
        return
    if run is None or dialogue is None:
        raise ConfigError(
            "A run and a dialogue are needed.", fix="rl2f fork RUN DIALOGUE; `rl2f replay RUN` lists them."
        )
    source = RunDir.open(run)
    found = _dialogue(run, dialogue)
    chosen = choose_checkpoints(source, checkpoint or [], found.checkpoint or found.dialogue.policy)
    arms = [parse_arm(text) for text in arm or []]
    values: dict[str, Any] = {"samples": samples, "turns": attempts, "later_hints": later_hints, "seed": seed}
    made = fork_config(source, str(run.resolve()), found.id, turn - 1, chosen, arms, **values)
    _start(made, source, sets, out)


def hint_value(
    run: Run = None,
    num_hints: Annotated[int, typer.Option(help="Hints that are drawn for each checkpoint.", min=1)] = 32,
    samples: Annotated[int, typer.Option(help="Dialogues of each arm after each hint.", min=1)] = 8,
    checkpoint: Checkpoints = None,
    phase: Annotated[
        Literal["evaluation", "train"], typer.Option(help="Whose hints: of the evaluation under hints, or of training.")
    ] = "evaluation",
    arm: Arms = None,
    attempts: Annotated[int, typer.Option(help="Attempts after the hint; 0 is what the dialogue had left.", min=0)] = 1,
    later_hints: LaterHints = "run",
    seed: Seed = 0,
    sets: Sets = None,
    out: Out = None,
    resume: Resume = None,
) -> None:
    """Estimate what the hints of a run were worth: p(solve | hint) − p(solve | contentless), each with an interval.

    A seeded sample of the run's hints is drawn; each is played again as it was, contentless, shuffled and misleading.
    In the workspace the replay then shows each value beside its hint. Without --checkpoint it is the run's last one.
    """
    from app.commands.train import execute_in
    from rl2f_core.counterfactual.arms import parse_arm
    from rl2f_core.counterfactual.config import choose_checkpoints
    from rl2f_core.errors import ConfigError
    from rl2f_core.run.directory import RunDir
    from rl2f_core.run_kinds.hint_value import hint_value_config

    if resume is not None:
        execute_in(RunDir.open(resume))
        return
    if run is None:
        raise ConfigError("A run is needed.", fix="rl2f hint-value RUN.")
    source = RunDir.open(run)
    chosen = choose_checkpoints(source, checkpoint or [])
    values: dict[str, Any] = {
        "hints": num_hints,
        "samples": samples,
        "turns": attempts or None,
        "later_hints": later_hints,
        "seed": seed,
    }
    if arm:
        values["arms"] = [parse_arm(text) for text in arm]
    _start(hint_value_config(source, str(run.resolve()), chosen, of=phase, **values), source, sets, out)


def _start(config: Any, source: RunDir, sets: list[str] | None, out: Path | None) -> None:
    """Make the folder and execute; a source that lies beside it is named without its path."""
    from app.commands.train import create, execute_in, folder_for
    from rl2f_core.config.loading import apply_override, parse_config

    data = config.model_dump(mode="json")
    for override in sets or []:
        data = apply_override(data, override)
    folder = out or folder_for(data["name"])
    if folder.resolve().parent == source.path.resolve().parent:
        data["source"] = source.path.resolve().name
    execute_in(create(parse_config(data), folder))


def _dialogue(run: Path, wanted: str) -> DialogueEvent:
    """The one dialogue that is meant. Raises `DataError` where there is none, or several."""
    from app.commands.replay import dialogues
    from rl2f_core.errors import DataError

    found = [e for n, e in enumerate(dialogues(run), 1) if wanted in (e.id, e.dialogue.id, str(n))]
    by_id = {event.id: event for event in found}
    if not by_id:
        raise DataError("The run has no such dialogue.", value=wanted, fix=f"`rl2f replay {run}` lists them.")
    if len(by_id) > 1:
        raise DataError("Several dialogues have this id.", value=wanted, known=by_id, fix="Name the event's id.")
    return found[0]
