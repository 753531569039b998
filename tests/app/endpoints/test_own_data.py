"""Endpoints of own data: files are stored completely and under a name of their content; a check lists bad rows."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from json_endpoints import JsonEndpoints

from app.common.context import Context
from app.endpoints.own_data import OwnDataEndpoints
from app.forms import own_data, run_form
from app.forms.allowlist import list_questions, refusal
from jobs.db.errors import NotFoundError, StoreReadOnlyError
from jobs.workspace import Workspace
from rl2f_core.environments.data_files import scan_records
from rl2f_core.environments.dataset.config import CheckerName
from rl2f_core.errors import DataError

TEXT = "item,result\n" + "".join(f"What is {n} plus {n}?,{2 * n}\n" for n in range(20)) + "What?,?\n"


@pytest.fixture
def own(context: Context) -> Any:
    return JsonEndpoints(OwnDataEndpoints(context))


def stored(context: Context) -> list[str]:
    """Names of all files in the folder of uploads, unfinished ones included."""
    return sorted(path.name for path in context.workspace.data.glob("*"))


def test_a_file_is_added_listed_checked_and_used(own: OwnDataEndpoints, context: Context) -> None:
    name = own.add_data_file("my sums.csv", TEXT)
    assert own.add_data_file("my sums.csv", TEXT) == name and stored(context) == own.list_data_files() == [name]
    assert own.list_data_columns(name) == ["item", "result"]
    with pytest.raises(DataError, match="known to hold the problem"):
        own.check_data_file(name)
    found = own.check_data_file(name, {"problem": "item", "answer": "result"})
    assert (found["rows"], found["valid"], found["num_bad_rows"], found["checker"]) == (21, 20, 1, "numeric")
    reason = "is not an answer that the checker numeric can read"
    assert found["bad_rows"] == [{"row": 21, "column": "result", "reason": reason}]
    assert found["preview"][0] == ["What is 0 plus 0?", "0"] and sum(found["problems"].values()) == 20
    environment = yaml.safe_load(found["yaml"])["environment"]
    assert environment["bad_rows"] == "skip"
    data = {**yaml.safe_load(run_form.preset_yaml("quickstart")), "environment": environment}
    checked = run_form.check_data(data, context.workspace)
    assert checked.ok, checked.errors


def test_another_content_never_replaces_a_file(own: OwnDataEndpoints, context: Context) -> None:
    first, second = own.add_data_file("a.csv", TEXT), own.add_data_file("a.csv", TEXT + "Half of 3?,1.5\n")
    assert first != second and stored(context) == sorted([first, second])
    assert (context.workspace.data / first).read_text() == TEXT


def test_a_check_returns_only_texts_that_can_be_sent(own: OwnDataEndpoints) -> None:
    lines = [json.dumps({"problem": f"What is {n} plus 1?", "answer": n + 1, "note": "\ud800"}) for n in range(20)]
    found = own.check_data_file(own.add_data_file("a.jsonl", "\n".join([*lines, '{"\\udc00": 1}'])))
    assert json.dumps(found, ensure_ascii=False).encode()
    assert found["preview"][0] == ["What is 0 plus 1?", "1", "?"]
    assert found["bad_rows"][0]["reason"] == "has a column whose name is not valid Unicode text"


def test_every_checker_can_be_chosen_in_the_page(own: OwnDataEndpoints) -> None:
    row = {"problem": "def f(n):", "answer": "def f(n): return n", "pattern": "def.*",
           "tests": [{"input": "1", "output": "1"}]}  # fmt: skip
    name = own.add_data_file("a.jsonl", json.dumps(row) + "\n")
    for checker in get_args(CheckerName):
        if checker in ("numeric", "multiple_choice", "json_fields"):
            with pytest.raises(DataError, match=r"no valid row\. Row 1, answer: "):
                own.check_data_file(name, checker=checker)
            continue
        found = own.check_data_file(name, checker=checker)
        assert found["valid"] == 1 and f"checker: {checker}\n" in found["yaml"]
        assert (checker == "judge") == ("type: openai_api" in found["yaml"])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", TEXT, "Files of this kind cannot be read.*Known: .csv"),
        ("a.csv", "", "must name each column once|no rows"),
        ("a.csv", "a,a\n1,2\n", "must name each column once"),
        ("a.parquet", "no parquet", "Parquet file cannot be read"),
        ("a.jsonl", "{broken\n", "no rows with columns"),
        ("../a.csv", TEXT, "has no folders"),
        ("..", TEXT, "has no folders"),
        ("", TEXT, "has no folders"),
        ("é" * 130 + ".csv", TEXT, "at most 255 bytes"),
        ("a.jsonl", '{"\\ud800": 1}', "no rows with columns"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_and_nothing_is_stored(
    name: str, text: str, said: str, own: OwnDataEndpoints, context: Context
) -> None:
    with pytest.raises(DataError, match=said):
        own.add_data_file(name, text)
    assert stored(context) == []


def test_a_file_above_the_limit_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    with open(tmp_path / "a.csv", "wb") as file:
        file.truncate(own_data.MAX_FILE_BYTES + 1)
    with pytest.raises(DataError, match=r"20\.0 MiB; an upload has at most 20 MiB"):
        own_data.store(workspace, tmp_path / "a.csv")
    assert own_data.stored_files(workspace) == []


def test_an_upload_that_grows_too_much_or_is_damaged_is_refused(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_data, "MAX_UNPACKED_BYTES", 2_000_000)
    packed = gzip.compress(b" " * 5_000_000)
    damaged = bytearray(gzip.compress(TEXT.encode()))
    damaged[15:25] = b"\xff" * 10
    for content, said in ((packed, "MiB when it is decompressed"), (damaged, "cannot be read")):
        (tmp_path / "a.jsonl.gz").write_bytes(content)
        with pytest.raises(DataError, match=said):
            own_data.store(workspace, tmp_path / "a.jsonl.gz")
    with pytest.raises(DataError, match="cannot be read"):
        list(scan_records(tmp_path / "a.jsonl.gz"))
    assert own_data.stored_files(workspace) == []


def test_the_same_file_can_be_stored_by_several_requests_at_once(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TEXT * 2000)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            paths = set(pool.map(lambda _: own_data.store(workspace, tmp_path / "a.csv"), range(8)))
            (path,) = paths
            assert path.read_text() == TEXT * 2000
            path.unlink()


def test_a_read_only_server_stores_nothing(own: OwnDataEndpoints, context: Context) -> None:
    context.read_only = True
    with pytest.raises(StoreReadOnlyError):
        own.add_data_file("a.csv", TEXT)
    assert stored(context) == []


def test_a_form_names_uploaded_files_alone(own: OwnDataEndpoints, context: Context, tmp_path: Path) -> None:
    workspace = context.workspace
    path = workspace.data / own.add_data_file("a.csv", TEXT)
    assert refusal("questions", str(path), workspace) is None and refusal("questions", "sample", workspace) is None
    assert [option.value for option in list_questions(workspace)] == ["sample", str(path)]
    (tmp_path / "secret.csv").write_text(TEXT)
    (workspace.data / "link.csv").symlink_to(tmp_path / "secret.csv")
    (workspace.data / "notes.txt").write_text("x")
    refused = [tmp_path / "secret.csv", workspace.data / "link.csv", workspace.data / "notes.txt", workspace.data,
               workspace.data / ".." / "data" / path.name, "/etc/passwd", path.name, "\0"]  # fmt: skip
    for name in map(str, refused):
        assert "not an uploaded file of questions" in str(refusal("questions", name, workspace))
    data = {**yaml.safe_load(run_form.preset_yaml("quickstart"))}
    data["environment"] = {"type": "dataset", "path": str(tmp_path / "secret.csv")}
    assert [error.field for error in run_form.check_data(data, workspace).errors] == ["environment.path"]
    for name in ("link.csv", "../rl2f.sqlite", str(tmp_path / "secret.csv")):
        with pytest.raises(NotFoundError, match=r"File of questions not found.*Fix: Upload it first"):
            own.check_data_file(name)
