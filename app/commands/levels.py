"""`rl2f levels`: evaluation of checkpoints by level, and on perturbed copies of the tasks."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from app.commands.options import Out, Resume, Sets, Targets
from app.commands.train import as_target, execute_in, execute_new, with_overrides
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject


def levels(
    targets: Targets = None,
    environment: Annotated[
        str | None, typer.Option(help="Environment (default: of the first target's run); required without targets.")
    ] = None,
    level: Annotated[list[int] | None, typer.Option(help="A level, e.g. 3; may be repeated (default: all).")] = None,
    level_field: Annotated[
        str | None, typer.Option(help="Environment field that sets the level (default: the environment's own).")
    ] = None,
    perturbation: Annotated[
        list[str] | None, typer.Option(help="A perturbation; may be repeated (default: all; `none` for none).")
    ] = None,
    tasks: Annotated[int, typer.Option(help="Tasks at each level.", min=1)] = 100,
    samples: Annotated[int, typer.Option(help="Dialogues on each task and copy.", min=1)] = 1,
    turns: Annotated[int, typer.Option(help="Turns with the teacher on the unchanged tasks.", min=1)] = 1,
    split: Annotated[
        Literal["train", "validation", "test"],
        typer.Option(help="Split of the tasks; train to detect memorization."),
    ] = "test",
    model: Annotated[str | None, typer.Option(help="The base model, if there are no targets.")] = None,
    sets: Sets = None,
    out: Out = None,
    resume: Resume = None,
) -> None:
    """Measure accuracy by level, on unchanged tasks and on perturbed copies, with the memorization score.

    For knights_knaves a level is the number of people, 2 to 8. Perturbed copies have other names, another order, other
    role words, or one changed statement, which changes the solution. The unchanged tasks are also solved with another
    seed, which measures the inconsistency by chance. The base model is always included.
    """
    from rl2f_core.run.kinds.levels import levels_config

    if resume is not None:
        execute_in(RunDir.open(resume))
        return
    changes: JsonObject = {"tasks": tasks, "samples": samples, "turns": turns, "split": split}
    changes |= {"values": level} if level else {}
    changes |= {"field": level_field} if level_field else {}
    changes |= {"perturbations": [name for name in perturbation if name != "none"]} if perturbation else {}
    config = levels_config([as_target(target) for target in targets or []], environment, model, **changes)
    execute_new(with_overrides(config, sets), out)
