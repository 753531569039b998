"""`rl2f results collect` from the command line."""

from __future__ import annotations

from pathlib import Path

from export_builders import write_run
from typer.testing import CliRunner

from app.cli import app


def test_collect_copies_the_results_of_a_run_and_names_the_next_command(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    asked = ["results", "collect", str(run), "--out", str(tmp_path / "out")]
    without = CliRunner().invoke(app, asked)
    assert without.exit_code == 2 and "no report" in without.output and not (tmp_path / "out").exists()
    (run / "evaluation").mkdir()
    (run / "evaluation" / "report.json").write_text("{}")
    (run / "evaluation" / "report.md").write_text("")
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0 and str(tmp_path / "out") in done.output and "make results" in done.output, done.output
    assert (tmp_path / "out" / "environment.json").is_file()
