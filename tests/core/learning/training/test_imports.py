"""What a training run imports: only what it uses."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from run_helpers import config_of

from rl2f_core.config.loading import dump_yaml

UNUSED = {
    "datasets", "gradio", "httpx", "matplotlib", "openai", "pandas", "plotly", "pyarrow", "ray", "requests", "sklearn",
    "sqlalchemy", "sqlmodel", "trl", "vllm", "rl2f_core.leaks.benchmark.comparison",
    "rl2f_core.leaks.benchmark.timing", "rl2f_core.learning.learner.trl_learner", "rl2f_core.learning.hardware.bench",
}  # fmt: skip
if find_spec("sklearn"):  # not ours: transformers imports it, and with it these, where another package installed it
    UNUSED -= {"sklearn", "pandas", "pyarrow"}
PROGRAM = """
import json, sys
from rl2f_core.config.loading import load_config
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.execute import execute
run_dir = RunDir.create(sys.argv[2], load_config(sys.argv[1]))
status = execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), bool).status
print(json.dumps([status, *sys.modules]))
"""


@pytest.mark.slow
def test_training_imports_no_package_that_it_does_not_use(tiny: Path, tmp_path: Path):
    (tmp_path / "run.yaml").write_text(dump_yaml(config_of(tiny, steps=(1, 1))))
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "run.yaml"), str(tmp_path / "run")]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    status, *modules = json.loads(output.splitlines()[-1])
    assert status == "succeeded" and "rl2f_core.learning.learner.learner" in modules
    assert not UNUSED & {*modules}
