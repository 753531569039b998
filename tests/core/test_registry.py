"""The registry while several threads use it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rl2f_core import registry


def test_a_thread_waits_for_components_that_another_one_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin, done = tmp_path / "slow_plugin.py", tmp_path / "done"
    plugin.write_text(f"import pathlib, time; time.sleep(0.3); pathlib.Path({str(done)!r}).touch()")
    monkeypatch.setenv("RL2F_PLUGINS", str(plugin))
    both = threading.Barrier(2)

    def is_imported() -> bool:
        both.wait()
        registry.discover()
        return done.exists()

    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(is_imported) for _ in range(2)]
        assert [future.result() for future in found] == [True, True]
