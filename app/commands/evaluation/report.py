"""`rl2f report`: evaluations of several runs and seeds in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.options import Root, Runs, find_run
from app.common import console
from rl2f_core.common.file_io import write_atomically
from rl2f_core.errors import DataError, rl2f_command

if TYPE_CHECKING:
    from rl2f_core.evaluation.report import EvaluationReport


def report(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option(help="Also write the Markdown to this file, and the figure beside it (PNG).")
    ] = None,
    workspace: Root = None,
) -> None:
    """Compare evaluated runs: values by seed, mean with an interval over seeds and problems, significant differences.

    Runs may have any seeds. Runs of the same seed, such as rl2f and its rlvr control, are joined by checkpoint before
    seeds are compared.
    """
    from rl2f_core.evaluation.across_seeds import join_runs, merge_seeds, seeds_chart
    from rl2f_core.evaluation.figure_files import to_png

    by_seed: dict[str, list[EvaluationReport]] = {}
    for run in runs:
        evaluation = _read(find_run(run, workspace))
        by_seed.setdefault(str(evaluation.seed), []).append(evaluation)
    summary = merge_seeds({seed: join_runs(reports) for seed, reports in sorted(by_seed.items())})
    text = summary.to_markdown()
    console.out().print(text, markup=False, soft_wrap=True)
    if out is not None:
        write_atomically(out, text)
        write_atomically(out.with_suffix(".png"), to_png(seeds_chart(summary)))
        console.err().print(f"Report and figure: {out}, {out.with_suffix('.png')}", markup=False)


def _read(run: Path) -> EvaluationReport:
    from rl2f_core.evaluation.report_file import read_report

    if (report := read_report(run)) is None:
        raise DataError("The run has no evaluation.", value=str(run), fix=rl2f_command("eval", run))
    return report
