"""Shared fixtures. No test writes to the user's cache, and none needs a network by default."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.model_server.process import ModelProcess
    from jobs.workspace import Workspace

USER_HOME = os.environ.get("RL2F_HOME")
TESTS = Path(__file__).parent
BROWSER = TESTS / "browser"
SHARING = [
    [BROWSER],
    [TESTS / "repo"],
    [
        TESTS / "jobs" / "chat",
        TESTS / "jobs" / "model_server",
        TESTS / "app" / "endpoints" / "test_chat.py",
        TESTS / "regressions" / "test_chats.py",
    ],
    [TESTS / "app" / f"test_{name}.py" for name in ("endpoint_access", "security", "server")],
]
"""Files and folders whose tests share the servers, syntax trees, the model process, and the whole app."""

gc.disable()  # until the tests are collected: the objects of imported modules are never garbage


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run each file in one process, which shares its fixtures, and so all files that share a server."""
    item.add_marker(pytest.mark.xdist_group(group_of(item.path)))


@functools.cache
def group_of(path: Path) -> str:
    """Return the name of the group of tests that run in one process."""
    around = {path, *path.parents}
    path = next((group[0] for group in SHARING if not around.isdisjoint(group)), path)
    return str(path.relative_to(TESTS)) if path.is_relative_to(TESTS) else path.name


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the browser tests first, because they take longest."""
    first = group_of(BROWSER)
    items.sort(key=lambda item: group_of(item.path) != first)


def pytest_collection_finish() -> None:
    """Exclude what was imported from garbage collection, which takes a fifth of the CPU time otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def rl2f_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A separate cache for this session."""
    folder = tmp_path_factory.mktemp("rl2f-home")
    before = os.environ.get("RL2F_HOME")
    os.environ["RL2F_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["RL2F_HOME"]
    else:
        os.environ["RL2F_HOME"] = before


@pytest.fixture(scope="session", autouse=True)
def command_line() -> Iterator[None]:
    """The parsed definition of the command line, which `CliRunner` otherwise makes for each call in 50 ms."""
    import typer.testing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def certificates() -> Iterator[None]:
    """The certificates of the system, read once instead of for each HTTP client in 40 ms."""
    import ssl

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny random model."""
    from rl2f_core.models.store import tiny

    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny.build(folder)
    return folder


@pytest.fixture(scope="session")
def speaker(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model after a short warm-up: it keeps the answer format."""
    from run_helpers import train_speaker

    return train_speaker(tiny, tmp_path_factory.mktemp("models") / "speaker")


@pytest.fixture(scope="session")
def smollm2(rl2f_home: Path) -> Path:
    """Folder of SmolLM2-135M in the user's cache, downloaded if missing; for slow tests."""
    from rl2f_core.models.store.store import get_model

    if USER_HOME is None:
        del os.environ["RL2F_HOME"]
    else:
        os.environ["RL2F_HOME"] = USER_HOME
    try:
        return get_model("smollm2-135m").path
    finally:
        os.environ["RL2F_HOME"] = str(rl2f_home)


@pytest.fixture(scope="session")
def model_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelProcess]:
    """The model process of all tests that do not change its limits; it restarts after its end."""
    from jobs.model_server.process import ModelProcess

    process = ModelProcess(tmp_path_factory.mktemp("log") / "chat.log")
    yield process
    process.close()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An SQLite file at the newest schema; creating the tables takes longer than most tests."""
    from jobs.db.engine import Database

    path = tmp_path_factory.mktemp("empty") / "workspace.sqlite"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    assert not path.with_name("workspace.sqlite-wal").exists()
    return path.read_bytes()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty workspace folder."""
    from jobs.workspace import Workspace

    return Workspace(tmp_path / "workspace").create()


@pytest.fixture
def db(workspace: Workspace, empty_database: bytes) -> Iterator[Database]:
    """Its database, at the newest version."""
    from jobs.db.engine import Database

    workspace.database.write_bytes(empty_database)
    database = Database(workspace.database_url())
    yield database
    database.close()


@pytest.fixture
def corridor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment `corridor` of `environment_plugins`."""
    from environment_plugins import loaded

    with loaded("corridor", tmp_path, monkeypatch):
        yield
