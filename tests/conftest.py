"""Fixtures that every test may use. No test writes to the user's cache, and none needs a network by default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jobs.database import Database
    from jobs.studio import Studio

USER_HOME = os.environ.get("RL2F_HOME")
BROWSER = Path(__file__).parent / "browser"


def pytest_itemcollected(item: pytest.Item) -> None:
    """One process plays a file, as much is made once a file; two play the pages, each with one browser and server."""
    group = item.path.name
    if BROWSER in item.path.parents:
        group = "pages a-f" if item.path.name < "test_g" else "pages g-z"
    item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The pages first: they take longest and leave time to the others."""
    items.sort(key=lambda item: BROWSER not in item.path.parents)


@pytest.fixture(scope="session", autouse=True)
def rl2f_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this session's own, so that tests never touch the user's."""
    folder = tmp_path_factory.mktemp("rl2f-home")
    before = os.environ.get("RL2F_HOME")
    os.environ["RL2F_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["RL2F_HOME"]
    else:
        os.environ["RL2F_HOME"] = before


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny random model."""
    from rl2f_core.models import tiny_model

    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def smollm2(rl2f_home: Path) -> Path:
    """The folder of SmolLM2-135M in the user's own cache, fetched where it is missing (for slow tests)."""
    from rl2f_core.models import get_model

    if USER_HOME is None:
        del os.environ["RL2F_HOME"]
    else:
        os.environ["RL2F_HOME"] = USER_HOME
    try:
        return get_model("smollm2-135m").path
    finally:
        os.environ["RL2F_HOME"] = str(rl2f_home)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An SQLite file at the newest version: making the tables takes longer than most tests that need them."""
    from jobs.database import Database

    path = tmp_path_factory.mktemp("empty") / "studio.sqlite"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    assert not path.with_name("studio.sqlite-wal").exists()
    return path.read_bytes()


@pytest.fixture
def studio(tmp_path: Path) -> Studio:
    """An empty studio folder."""
    from jobs.studio import Studio

    return Studio(tmp_path / "studio").create()


@pytest.fixture
def db(studio: Studio, empty_database: bytes) -> Iterator[Database]:
    """Its database, at the newest version."""
    from jobs.database import Database

    studio.database.write_bytes(empty_database)
    database = Database(studio.database_url())
    database.migrate()
    yield database
    database.close()
