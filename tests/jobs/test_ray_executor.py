"""The Ray executor without a cluster: what it refuses, and what it does while its cluster does not answer."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from jobs.executors import ray as ray_executor
from jobs.executors._ray_actor import fingerprint
from jobs.executors._ray_agent import answer
from jobs.executors._ray_link import Link, UnreachableError
from jobs.executors.base import Handle
from jobs.executors.ray import SILENT, Ray, studio_key
from jobs.studio import Studio
from rl2f_core.errors import ConfigError, RunError

PLACE = "ray:10.0.0.1:6379/0a1b2c3d/7-run/2"


class Cluster:
    """The other end of a link, which answers or not."""

    def __init__(self, address: str = "10.0.0.1:6379") -> None:
        self.address, self.answers, self.lives = address, True, True
        self.asked: list[tuple[str, str]] = []

    def ask(self, do: str, seconds: float = 20.0, **values: Any) -> Any:
        if not self.answers:
            raise UnreachableError(f"No Ray cluster answers at {self.address}.")
        self.asked.append((do, values.get("name", "")))
        if do == "nodes":
            return [{"name": "n", "total": {"CPU": 2.0, "GPU": 0.0}, "free": {"CPU": 1.0, "GPU": 0.0}}]
        return self.lives if do == "alive" else None


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ray:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # as if Ray were installed
    made = Ray(Studio(tmp_path / "studio").create(), "10.0.0.1:6379")
    made._links["10.0.0.1:6379"] = Cluster()  # type: ignore[assignment]
    return made


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"ray is not installed. Fix: pip install 'rl2f\[ray\]'"):
        Ray(Studio(tmp_path))


def test_an_address_of_ray_client_is_refused_with_the_way_that_works(executor: Ray) -> None:
    with pytest.raises(ConfigError, match=r"but of Ray Client. Got: 'ray://head:10001'.*ray start --address=HOST:PORT"):
        Ray(executor.studio, "ray://head:10001")


def test_a_worker_is_asked_after_by_name_in_its_own_cluster(executor: Ray) -> None:
    other = executor._links["10.0.0.2:6379"] = Cluster("10.0.0.2:6379")  # type: ignore[assignment]
    home: Any = executor.home()
    handle = Handle(7, 1.0, "/runs/7-run", PLACE)
    assert executor.alive(handle) and handle.executor == "ray"
    executor.stop(handle)
    executor.kill(Handle(7, 1.0, "/runs/7-run", PLACE.replace("10.0.0.1", "10.0.0.2")))
    executor.clean(handle)
    assert home.asked == [("alive", "0a1b2c3d/7-run/2"), ("stop", "0a1b2c3d/7-run/2"), ("clean", "0a1b2c3d/7-run/2")]
    assert other.asked == [("kill", "0a1b2c3d/7-run/2")]  # type: ignore[attr-defined]
    home.lives = False
    assert not executor.alive(handle) and executor.exit_code(handle) is None


def test_a_room_without_a_cluster_says_why_runs_wait(executor: Ray) -> None:
    cluster: Any = executor.home()
    config = "environment: guess_number\nmodel: {device: cpu}\nstages: [{name: s, method: sft, steps: 1}]\n"
    for _ in range(2):
        assert executor.room().take(config) == ("ray:cpu", "")
    assert [do for do, _ in cluster.asked] == ["sweep", "nodes", "nodes"]  # what a dead server left, once
    cluster.answers = False
    assert executor.room().take(config) == (None, "No Ray cluster answers at 10.0.0.1:6379.")
    assert executor.described() == "No Ray cluster answers at 10.0.0.1:6379."
    cluster.answers = True
    assert executor.described() == "Runs go to the Ray cluster at 10.0.0.1:6379: 2 CPU, 0 GPU on 1 node."


def test_without_an_address_a_cluster_of_this_machine_is_started_once_and_found_again(
    executor: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def start_head(log: Path) -> str:
        started.append(f"127.0.0.1:{7000 + len(started)}")
        return started[-1]

    made: dict[str, Cluster] = {}
    monkeypatch.setattr(ray_executor, "start_head", start_head)
    monkeypatch.setattr(ray_executor, "Link", lambda address, log: made.setdefault(address, Cluster(address)))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for address in (None, "local", ""):  # three servers, one after the other
        assert Ray(executor.studio, address).home().address == "127.0.0.1:7000"
    assert started == ["127.0.0.1:7000"]
    made["127.0.0.1:7000"].answers = False  # the machine was started anew
    assert Ray(executor.studio).home().address == "127.0.0.1:7001" and len(started) == 2
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    assert Ray(executor.studio).home().address == "10.0.0.9:6379" and len(started) == 2


def test_while_its_cluster_is_silent_a_worker_lives_as_long_as_it_is_heard_of(
    executor: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(ray_executor.time, "monotonic", lambda: now[0])
    handle, cluster = Handle(7, 1.0, str(tmp_path), PLACE), executor.home()
    cluster.answers = False  # type: ignore[attr-defined]
    (tmp_path / "progress.json").write_text("1")
    assert executor.alive(handle)
    now[0] += SILENT - 1
    assert executor.alive(handle)
    (tmp_path / "progress.json").write_text("2")  # it works on, only its cluster's head is away
    assert executor.alive(handle)
    now[0] += SILENT - 1
    assert executor.alive(handle)
    now[0] += 2
    assert not executor.alive(handle)


def test_what_could_not_be_asked_of_a_worker_is_asked_when_its_cluster_is_back(executor: Ray, tmp_path: Path) -> None:
    handle, cluster = Handle(7, 1.0, str(tmp_path), PLACE), executor.home()
    cluster.answers = False  # type: ignore[attr-defined]
    executor.stop(handle)
    cluster.answers = True  # type: ignore[attr-defined]
    assert executor.alive(handle) and executor.alive(handle)
    name = "0a1b2c3d/7-run/2"
    assert cluster.asked == [("alive", name), ("stop", name), ("alive", name)]  # type: ignore[attr-defined]


def test_studios_have_names_of_their_own_in_a_cluster(tmp_path: Path) -> None:
    one, other = studio_key(Studio(tmp_path / "a")), studio_key(Studio(tmp_path / "b"))
    assert one != other and len(one) == 8 and one == studio_key(Studio(tmp_path / "a"))


def test_a_folder_is_the_same_only_with_the_same_configuration_and_slot(tmp_path: Path) -> None:
    for name, text in (("config.yaml", "a"), ("slot.json", "b")):
        (tmp_path / name).write_text(text)
    before = fingerprint(tmp_path)
    assert fingerprint(tmp_path) == before
    (tmp_path / "slot.json").write_text("c")
    assert fingerprint(tmp_path) != before
    with pytest.raises(OSError):
        fingerprint(tmp_path / "elsewhere")


def test_errors_at_the_other_end_keep_their_parts() -> None:
    class Broken:
        def start(self) -> None:
            raise RunError("It does not see the folder.", value=Path("/runs/7"), fix="Share it.")

        def stop(self) -> None:
            raise ZeroDivisionError("nobody\nthought of this")

    cluster: Any = Broken()
    assert answer(cluster, {"id": 1, "do": "start"})["error"] == {
        "ours": True, "what": "It does not see the folder.", "value": "/runs/7", "fix": "Share it.",
    }  # fmt: skip
    assert answer(cluster, {"id": 2, "do": "stop"}) == {"error": {"ours": False, "what": "ZeroDivisionError: nobody"}}


def test_a_link_whose_process_cannot_connect_says_so_and_is_not_tried_again_at_once(tmp_path: Path) -> None:
    (tmp_path / "ray.log").write_text("x" * 10)
    link = Link("nowhere://x", tmp_path / "ray.log")  # no address at all, with Ray or without
    for _ in range(2):
        with pytest.raises(UnreachableError, match=r"No Ray cluster answers at nowhere://x. Got: .*ray start --head"):
            link.ask("nodes")
    assert (tmp_path / "ray.log").read_text().count("Traceback (most recent call last)") >= 1
    assert link._failed is not None and link._process is None
    link.close()
