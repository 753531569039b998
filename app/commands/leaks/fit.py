"""`rl2f leaks fit`: fit the weights of the leak detector `mentions`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.options import Root, find_number, migrated
from app.common.console import err, out
from rl2f_core.common.file_io import write_atomically
from rl2f_core.common.paths import MENTION_WEIGHTS
from rl2f_core.errors import ConfigError, rl2f_command

if TYPE_CHECKING:
    from rl2f_core.leaks.mentions.model import MentionWeights

SCRIPTED = 60
"""Scripted hints per environment in the default weights."""


def fit(
    run: Annotated[
        list[str] | None, typer.Option("--run", help="Adapt the weights to the labels of this run; repeatable.")
    ] = None,
    mrbench: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Fit the default weights; FILE is MRBench_V2.json.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File of the weights that --mrbench fits.")
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Replace the default weights by these.")] = False,
    workspace: Root = None,
) -> None:
    """Fit the leak detector `mentions`, in seconds: to people's labels, or its default weights to real tutors.

    With --run, the result is a new version DETECTORS/mentions/vN.json of the workspace. Precision and recall are
    cross-validated; those on blind random draws are stated for the new and the default weights. With --mrbench, the
    data are the dev half of the public file MRBench_V2.json, the dev halves of our benchmarks, and scripted hints.
    """
    from rl2f_core.leaks.mentions.detector import describe_weights

    if bool(run) == (mrbench is not None):
        raise ConfigError("A fit needs labels or a file.", fix="Give either --run NUMBER or --mrbench FILE.")
    if mrbench is None:
        from jobs.labels.fitting import fit_labels

        with migrated(workspace) as (opened, db):
            weights = fit_labels(opened, db, [find_number(name, workspace) for name in run or ()])
            file: Path | None = opened.detectors / f"{weights.name}.json"
    else:
        weights, file = fit_default(mrbench), MENTION_WEIGHTS if default else output
        if file is not None:
            write_atomically(file, weights.model_dump_json(indent=1) + "\n")
    out().print(describe_weights(weights), markup=False, soft_wrap=True)
    if file is not None:
        err().print(f"Weights: {file}", markup=False, soft_wrap=True)
        score = rl2f_command("leaks", "benchmark", "--detectors", f"mentions:path={file}")
        err().print(f"Score them: {score}", markup=False, soft_wrap=True)


def fit_default(mrbench: Path) -> MentionWeights:
    """Fit the default weights; the threshold is chosen on real tutors."""
    from rl2f_core.leaks.mentions.model import cross_validated, fitted
    from rl2f_core.leaks.mentions.training import TUTORS, own_examples, scripted_examples, tutor_examples

    examples = [*tutor_examples(mrbench), *own_examples(), *scripted_examples(SCRIPTED)]
    return fitted(examples, cross_validated(examples), "default", TUTORS)
