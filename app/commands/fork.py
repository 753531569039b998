"""`rl2f fork` and `rl2f hint-value`: effects of other hints on stored dialogues."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.commands.options import OptionalRun, Out, Resume, Root, Sets, find_run
from app.commands.replay import dialogues
from app.commands.settings import options_of
from app.commands.train import execute_in, execute_new, folder_for, with_overrides
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError, DataError, rl2f_command
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import JsonObject

Arms = Annotated[
    list[str] | None,
    typer.Option(
        "--arm",
        help="original, empty, contentless, shuffled, misleading, redacted, edited:TEXT or teacher:NAME; may be "
        "repeated. redacted masks the flagged span, and repeats the dialogue under its own seed. "
        "Default: original, contentless, shuffled, misleading.",
    ),
]
Checkpoints = Annotated[
    list[str] | None,
    typer.Option("--checkpoint", help="base, a checkpoint of the run, or an adapter's folder; may be repeated."),
]


def fork(
    run: OptionalRun = None,
    dialogue: Annotated[
        str | None, typer.Argument(help="Id of the dialogue or of its event, or its number in `rl2f replay RUN`.")
    ] = None,
    turn: Annotated[int, typer.Option(help="Turn whose hint is replaced, counted from 1.", min=1)] = 1,
    arm: Arms = None,
    checkpoint: Checkpoints = None,
    values: JsonObject = options_of(
        "rl2f_core.run.kinds.fork:ForkRun", "samples", "turns", "later_hints", "seed", turns="--attempts"
    ),
    sets: Sets = None,
    out: Out = None,
    resume: Resume = None,
    workspace: Root = None,
) -> None:
    """Continue a stored dialogue after one of its attempts under other hints; the original stays unchanged.

    Every arm and checkpoint gets the same number of samples with the same seeds. The report gives each arm's solve rate
    and its paired difference to contentless. The default of --checkpoint is the checkpoint of the dialogue, or the
    nearest saved one.
    """
    from rl2f_core.evaluation.counterfactual.arms import parse_arm
    from rl2f_core.evaluation.counterfactual.config import choose_checkpoints
    from rl2f_core.evaluation.counterfactual.fork_points import fork_point_at
    from rl2f_core.run.kinds.fork import fork_config

    if resume is not None:
        execute_in(RunDir.open(resume))
        return
    if run is None or dialogue is None:
        raise ConfigError(
            "A run and a dialogue are needed.", fix="rl2f fork RUN DIALOGUE; `rl2f replay RUN` lists them."
        )
    source = RunDir.open(find_run(run, workspace))
    event = _find_dialogue(source.path, dialogue)
    fork_point_at(event, turn - 1, first=1)
    checkpoints = choose_checkpoints(source, checkpoint or [], event.checkpoint or event.dialogue.policy)
    arms = [parse_arm(text) for text in arm or []]
    config = fork_config(source, str(source.path.resolve()), event.id, turn - 1, checkpoints, arms, **values)
    _start(config, source, sets, out)


def hint_value(
    run: OptionalRun = None,
    checkpoint: Checkpoints = None,
    arm: Arms = None,
    values: JsonObject = options_of(
        "rl2f_core.run.kinds.hint_value:HintValueRun",
        *("hints", "of", "samples", "later_hints", "seed"),
        hints="--num-hints",
        of="--phase",
    ),
    attempts: Annotated[int, typer.Option(help="Attempts after the hint; 0: all turns that are left.", min=0)] = 1,
    sets: Sets = None,
    out: Out = None,
    resume: Resume = None,
    workspace: Root = None,
) -> None:
    """Estimate the value of a run's hints: p(solve | hint) − p(solve | contentless), each with an interval.

    Each hint of a seeded sample is replaced by the original, a contentless, a shuffled and a misleading hint. In a
    workspace the replay of the dialogue shows the values. The default of --checkpoint is the run's last one.
    """
    from rl2f_core.evaluation.counterfactual.arms import parse_arm
    from rl2f_core.evaluation.counterfactual.config import choose_checkpoints
    from rl2f_core.run.kinds.hint_value import hint_value_config

    if resume is not None:
        execute_in(RunDir.open(resume))
        return
    if run is None:
        raise ConfigError("A run is needed.", fix="rl2f hint-value RUN.")
    source = RunDir.open(find_run(run, workspace))
    checkpoints = choose_checkpoints(source, checkpoint or [])
    values = {**values, "turns": attempts or None}
    if arm:
        values["arms"] = [parse_arm(text) for text in arm]
    _start(hint_value_config(source, str(source.path.resolve()), checkpoints, **values), source, sets, out)


def _start(config: BaseRun, source: RunDir, sets: list[str] | None, out: Path | None) -> None:
    """Create the folder and execute; a source in the same directory is stored without its path."""
    config = with_overrides(config, sets)
    folder = out or folder_for(config.name)
    if folder.resolve().parent == source.path.resolve().parent:
        config = config.model_copy(update={"source": source.path.resolve().name})
    execute_new(config, folder)


def _find_dialogue(run: Path, name: str) -> DialogueEvent:
    """Return the dialogue with an id or number; raises `DataError` if there is none, or several."""
    matches = [e for n, e in enumerate(dialogues(run), 1) if name in (e.id, e.dialogue.id, str(n))]
    if not matches:
        raise DataError("The run has no such dialogue.", value=name, fix=f"`{rl2f_command('replay', run)}` lists them.")
    ids = list(dict.fromkeys(event.id for event in matches))
    if len(ids) > 1:
        raise DataError("Several dialogues have this id.", value=name, known=ids, fix="Name the event's id.")
    return matches[0]
