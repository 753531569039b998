"""`rl2f report`: the evaluations of several runs and seeds in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of evaluated runs, of any seeds.")],
    out: Annotated[
        Path | None, typer.Option(help="Also write the Markdown and the figure (PNG) here, e.g. a.md.")
    ] = None,
) -> None:
    """Put evaluated runs side by side: values by seed, mean with a t interval, what separates.

    Runs of the same seed (say rl2f and its rlvr control) are joined by checkpoint before seeds are compared.
    """
    from app.common.console import err
    from app.common.console import out as stdout
    from rl2f_core.evaluation.across_seeds import join_runs, merge_seeds, seeds_chart
    from rl2f_core.evaluation.figure_files import to_png
    from rl2f_core.evaluation.report import EvaluationReport
    from rl2f_core.file_io import write_atomically

    by_seed: dict[str, list[EvaluationReport]] = {}
    for run in runs:
        held = _read(run)
        by_seed.setdefault(str(held.seed), []).append(held)
    joined = {seed: join_runs(held) for seed, held in sorted(by_seed.items())}
    summary = merge_seeds(joined)
    text = summary.to_markdown()
    stdout().print(text, markup=False, soft_wrap=True)
    if out is not None:
        write_atomically(out, text)
        write_atomically(out.with_suffix(".png"), to_png(seeds_chart(summary)))
        err().print(f"Written: {out}, {out.with_suffix('.png')}", markup=False)


def _read(run: Path):  # type: ignore[no-untyped-def]  # the type would load the evaluation code for --help
    from pydantic import ValidationError

    from rl2f_core.errors import DataError
    from rl2f_core.evaluation.report import EvaluationReport

    path = run / "evaluation" / "report.json"
    try:
        return EvaluationReport.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError("The run has no evaluation.", value=str(run), fix=f"rl2f eval {run}") from error
    except ValidationError as error:
        raise DataError("The evaluation's report cannot be read.", value=str(path), fix=f"rl2f eval {run}") from error
