"""The benchmark of a large studio, in small: it makes what it says, and its questions and calls have answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.common.context import Context
from app.endpoints.exports import ExportEndpoints
from app.endpoints.studio import Studio
from jobs.db.engine import Database
from jobs.db.queries import tokens
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from tests.benchmarks import studio as benchmark
from tests.benchmarks import studio_data
from tests.benchmarks.studio_server import Call, calls


def test_sizes_are_uneven_and_add_up() -> None:
    sizes = studio_data.sizes(1000, 200_000)
    assert (len(sizes), sum(sizes), max(sizes), min(sizes)) == (1000, 200_000, 20_000, 141)


def test_a_call_has_all_arguments_by_position() -> None:
    call = Call.of("list", ExportEndpoints.count_export, runs=[1])
    assert call == Call("list", "count_export", [[1], None])


def test_every_call_is_of_an_endpoint_that_only_reads(workspace: Workspace, db: Database) -> None:
    scopes = {name: scope for name, scope, _ in Studio(Context(workspace, db, Queue(db, workspace))).endpoints()}
    assert {scopes[call.endpoint] for call in calls(1, "event", "words").values()} == {"read"}


@pytest.mark.slow
def test_the_made_studio_is_whole_and_every_question_of_the_benchmark_is_answered(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").create()
    db = Database(workspace.database_url())
    db.migrate()
    said: list[str] = []
    rate = benchmark.build(db, workspace, benchmark.arguments(["--runs", "20", "--dialogues", "900"]), said.append)
    timings = {timing.name: timing for timing in benchmark.timed(db, 1)}
    served, memory = benchmark.served(db, workspace, 1)
    assert [timing.name for timing in served] == [f"HTTP {name}" for name in calls(1, "event", "words")]
    assert memory > 0 and tokens.list_all(db) == []
    db.close()
    assert rate["rate"] > 0 and rate["of_a_core"] > 0 and len(said) == 2
    assert 900 * 4 < rate["turns"] < 900 * 6
    assert timings["all runs: first page"].found == 900
    assert timings["largest run: first page"].found == 90
    assert timings["runs: newest first"].found == 20
    assert timings["all runs: frequent word"].found > 800
    assert timings["all runs: no such word"].found == 0
    assert 0 < timings["all runs: leaked"].found < 300
    assert 0 < timings["all runs: two words"].found < timings["all runs: frequent word"].found
    assert timings["all runs: labelled"].found + timings["all runs: unlabelled"].found == 900
    assert 0 < timings["board: all runs by detector"].found <= 9, "those of one half"
    assert timings["its group"].found == studio_data.GROUP
    assert {timing.limit for timing in timings.values()} == {300.0, 100.0, 1000.0, 20.0, 500.0}
