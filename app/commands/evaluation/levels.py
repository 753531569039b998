"""`rl2f levels`: evaluation of checkpoints by level, and on perturbed copies of the tasks."""

from __future__ import annotations

from typing import Annotated

import typer

from app.commands.options import Out, Resume, Root, Sets, Targets, find_target
from app.commands.settings import options_of
from app.commands.train import execute_in, execute_new, with_overrides
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject


def levels(
    targets: Targets = None,
    environment: Annotated[
        str | None, typer.Option(help="Environment (default: of the first target's run); required without targets.")
    ] = None,
    changes: JsonObject = options_of(
        "rl2f_core.evaluation.levels.config:LevelsRun",
        *("values", "field", "perturbations", "tasks", "samples", "turns", "split"),
        values="--level",
        field="--level-field",
    ),
    model: Annotated[str | None, typer.Option(help="The base model, if there are no targets.")] = None,
    sets: Sets = None,
    out: Out = None,
    resume: Resume = None,
    workspace: Root = None,
) -> None:
    """Measure accuracy by level, on unchanged tasks and on perturbed copies, with the memorization score.

    For knights_knaves a level is the number of people, 2 to 8. Perturbed copies have other names, another order, other
    role words, or one changed statement, which changes the solution. The unchanged tasks are also solved with another
    seed, which measures the inconsistency by chance. The base model is always included.
    `--perturbation none` makes no copies.
    """
    from rl2f_core.run.kinds.levels import levels_config

    if resume is not None:
        execute_in(RunDir.open(resume))
        return
    if "perturbations" in changes:
        changes["perturbations"] = [name for name in changes["perturbations"] if name != "none"]
    config = levels_config([find_target(target, workspace) for target in targets or []], environment, model, **changes)
    execute_new(with_overrides(config, sets), out)
