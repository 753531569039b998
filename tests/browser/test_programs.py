"""A program in another process does what a person can: launch, wait, read, label, export and download."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROGRAM = """
import json, sys, time
from gradio_client import Client
url, token, config, downloads = sys.argv[1:]
client = Client(url, headers={"Authorization": f"Bearer {token}"}, download_files=downloads, verbose=False,
                analytics_enabled=False)
call = lambda endpoint, /, **arguments: client.predict(api_name="/" + endpoint, **arguments)

run = call("launch_run", yaml=config)["run"]
while (status := call("get_run", run=run)["run"]["status"]) not in ("succeeded", "failed"):
    time.sleep(0.5)
first = call("list_dialogues", filter={"run": run, "phase": "evaluation"}, limit=1)["rows"][0]
dialogue = call("get_dialogue", run=run, event_id=first["event_id"])
hint = call("next_hints_to_label", annotator="program", queue={"run": run}, limit=1)["hints"][0]
call("label_hint", run=run, event_id=hint["event_id"], turn=hint["turn"], annotator="program", label="no_leak")
labels = call("list_labels", run=run, event_id=hint["event_id"], turn=hint["turn"])
job = call("start_export", run_ids=[run], settings={"formats": ["messages"], "files": ["jsonl"], "name": "by program"})
while not (done := [e for e in call("list_exports")["finished"] if e["name"] == "by program"]):
    time.sleep(0.5)
path = call("download_export", folder=done[0]["folder"], name="messages.jsonl")
call("undo_label", annotator="program")
rows, lines = done[0]["formats"][0]["rows"], len(open(path).readlines())
print(json.dumps({"status": status, "turns": len(dialogue["turns"]), "labels": labels, "rows": rows, "lines": lines}))
"""


def command(server: Any, environment: dict[str, str], *words: str) -> str:
    """Return what `rl2f` prints for the server's workspace."""
    run = [sys.executable, "-c", "from app.cli import main; main()", *words, "--workspace", str(server.workspace)]
    return subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.slow
def test_a_program_launches_reads_labels_exports_and_downloads(
    server: Any, server_environment: dict[str, str], tiny_config: dict[str, Any], tmp_path: Path
) -> None:
    printed = command(server, server_environment, "token", "new", "--scope", "run", "--scope", "label")
    token = next(word for word in printed.split() if word.startswith("rl2f_"))
    config = yaml.safe_dump({**tiny_config, "name": "by program"})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.url, token, config, str(tmp_path)],
        env=server_environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == "succeeded" and found["turns"] >= 1
    assert [label["label"] for label in found["labels"]] == ["no_leak"]
    assert found["rows"] == found["lines"] > 0
