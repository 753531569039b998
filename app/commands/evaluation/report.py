"""`rl2f report`: evaluations of several runs and seeds in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from app.commands.options import Root, Runs, find_run
from app.common import console
from rl2f_core.common.file_io import write_atomically
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.errors import DataError, RL2FError, rl2f_command
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject

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
    seeds are compared. A checkpoint whose results differ between configurations has the name of each.
    """
    from app.plots.comparison import ComparedRun, group_name, seed_groups
    from jobs.db.queries.run_values import group_key
    from rl2f_core.evaluation.across_seeds import join_runs, merge_seeds, name_apart, seeds_chart
    from rl2f_core.evaluation.figure_files import to_png

    folders = [find_run(run, workspace) for run in runs]
    reports = [_read(folder) for folder in folders]
    members: list[ComparedRun] = []
    for number, folder in enumerate(folders):
        config = {**_config(folder), "seed": reports[number].seed}
        name = str(config.get("name") or folder.name)
        members.append(ComparedRun(number, name, (), None, config, group_key(config)))
    groups: dict[str, list[EvaluationReport]] = {}
    for group in seed_groups(members):
        name = group_name(group)
        name = f"{name} (run {runs[group[0].id]})" if name in groups else name
        groups[name] = [reports[member.id] for member in group]
    by_seed: dict[str, list[EvaluationReport]] = {}
    for evaluation in name_apart(groups):
        by_seed.setdefault(str(evaluation.seed), []).append(evaluation)
    summary = merge_seeds({seed: join_runs(reports) for seed, reports in sorted(by_seed.items())})
    text = summary.to_markdown()
    console.out().print(text, markup=False, soft_wrap=True)
    if out is not None:
        write_atomically(out, text)
        write_atomically(out.with_suffix(".png"), to_png(seeds_chart(summary)))
        console.err().print(f"Report and figure: {out}, {out.with_suffix('.png')}", markup=False)


def _config(run: Path) -> JsonObject:
    """Return the configuration of a run, as it is written if it is not valid here; empty without a readable file."""
    folder = RunDir(run)
    try:
        return folder.config().model_dump(mode="json")
    except RL2FError:  # of another version, or with a plug-in that is not loaded
        pass
    try:
        data = load_yaml(folder.checked_path("config.yaml").read_text(encoding="utf-8"))
    except (RL2FError, OSError, ValueError, yaml.YAMLError):
        data = None
    return data if isinstance(data, dict) else {}


def _read(run: Path) -> EvaluationReport:
    from rl2f_core.evaluation.report_file import read_report

    if (report := read_report(run)) is None:
        raise DataError("The run has no evaluation.", value=str(run), fix=rl2f_command("eval", run))
    return report
