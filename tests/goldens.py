"""Freeze what users see of one checkout, and compare another one with it. Deleted when the refactoring ends.

    python tests/goldens.py freeze FOLDER --code CHECKOUT [--only PART …]
    python tests/goldens.py compare FOLDER --code CHECKOUT [--only PART …]

The product runs in subprocesses (`python -m app.cli`, HTTP), never by imports. `runs` also freezes run folders and
`studio` a workspace, which the other parts read; `old` opens the frozen workspace, `studio` makes a new one.
"""

# fmt: off
# ruff: noqa: E501
# mypy: disable-error-code="operator,index,dict-item"
from __future__ import annotations

import argparse
import contextlib
import difflib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WORK = Path("/tmp/rl2f-goldens")  # fixed, since paths are part of many outputs
SPACE = WORK / "workspace"
CLOCK = re.compile(
    r"time/.*|tokens_per_second/.*|system/.*|.*seconds.*|cpu_.*|time|.*_time|pid|host.*|created|changed|started|eta|first"
    r"|updated|last_used|modified|revision|commit|dirty|machine|packages|platform|python|duration.*|.*memory.*"
    r"|version|.*_version|last_seen|gpu|cores|git|target_modules|load|rss.*|.*_gib")
MASKS = [
    (re.compile(r"\b1[6-9]\d{8}(\.\d+)?\b"), "<clock>"),
    (re.compile(r"\b20\d\d-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?"), "<date>"),
    (re.compile(r"(status|rl2f)([:_])[\w-]{16,}|(chatcmpl|cmpl)(-)[0-9a-f]{32}"), r"\1\2\3\4<random>"),
    (re.compile(r"\b\d+(\.\d+)? (s|ms|min|seconds|minutes|GiB|GB|MB)\b"), "<amount>"),
    (re.compile(r"<seconds>|(?<=seconds) +[\d.]+"), "<amount>"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:<port>"),
]
PLUGIN = '''
from typing import Literal
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import Environment, sample_task
from rl2f_core.registry import register
from rl2f_core.types import Task, Verdict

@register("environment")
class Parity(Environment):
    class Config(ComponentConfig):
        """Any text whose characters have an even sum is right, so that groups of a random model are mixed."""
        type: Literal["parity"] = "parity"

    def task(self, split, index):
        return sample_task(self, split, index, seed=0, make=lambda rng: Task(
            id="", environment=self.name, split="train", level="any",
            public={"word": "".join(rng.choices("abcdefghij", k=4))}, privileged={"answer": "even"}))

    def prompt(self, public):
        return f"Write an even text: {public['word']}"

    def verify(self, task, attempt):
        right = sum(map(ord, attempt)) % 2 == 0
        return Verdict(correct=right, score=float(right), parsed=attempt[:4] or "x", well_formed=True)
'''
SMALL = ["model.name=tiny-random", "model.device=cpu", "model.dtype=float32", "preflight.ignore_failure=true",
         "preflight.num_tasks=1", "preflight.samples_per_task=2", "evaluation.num_tasks=2"]
TRAIN_ONLY = "evaluation.checkpoints=[]"

def stages(count: int) -> list[str]:
    return [f"stages.{i}.{size}" for i in range(count) for size in ("steps=1", "tasks_per_step=2")]

def parity(*methods: str) -> list[str]:
    shared = "tasks_per_step: 2, group_size: 4, steps: 2, learning_rate: 3.0e-3"
    rows = ", ".join(f"{{name: {name}, method: {{type: {name}}}, {shared}}}" for name in methods)
    return ["environment={type: parity}", "teacher=contentless", "reward={preset: binary}", f"stages=[{rows}]", TRAIN_ONLY]

RUNS: dict[str, tuple[str, list[str]]] = {
    "dialogue": ("methods:dialogue-secret_code", [*stages(7), "teacher={type: leaky, rate: 0.6}", "leak_detection.action=redact",
                                                  "evaluation.checkpoints=[rl2f@1]"]),
    "fresh": ("methods:fresh-arithmetic", [*stages(5), "teacher={type: llm, llm: {type: local}, max_new_tokens: 8}", TRAIN_ONLY]),
    "cold_start": ("cold_start", [*stages(4), "rollout.max_new_tokens=600", "rollout.max_seq_len=2048", TRAIN_ONLY]),
    "reflect": ("reflect_rl_small:taxi-negatives", [*stages(4), "stages.3.curriculum=null", "rollout.max_turns=4", "stages.2.steps=2",
                                                    "evaluation.checkpoints=[rl@2]"]),
    "parity": ("methods:dialogue-secret_code", [*parity("rlvr", "rl2f", "sdpo", "reinforce_pp", "ppo"), "retain_states=1.0"]),
    "parity_fresh": ("methods:fresh-secret_code", parity("rltf_grpo", "rltf_sd", "rltf_fm", "sft_correct")),
}
PRESETS: dict[str, tuple[str, list[str]]] = {
    "internalise": ("internalise:binary_matrix", [*stages(4), "rollout.max_new_tokens=8", TRAIN_ONLY]),
    **{name: (name, [*stages(2), TRAIN_ONLY]) for name in ("ppo", "reinforce_pp", "rl2f_self", "sdpo")},
    **{name: (name, [*stages(3), TRAIN_ONLY]) for name in ("rltf_fm", "rltf_sd")},
}

class Recorder:
    """Runs the product of the checkout `code`, and writes masked items below `out`."""

    def __init__(self, out: Path, code: Path) -> None:
        self.out, self.code = out, code

    def mask(self, value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            for pattern, replacement in MASKS:
                value = pattern.sub(replacement, value.replace(str(self.code), "<code>"))
        if isinstance(value, dict):
            return {self.mask(name): self.mask(item, name) for name, item in value.items()}
        if key and CLOCK.fullmatch(key) and value is not None:
            return "<masked>"
        if isinstance(value, list | tuple):
            return [self.mask(item) for item in value]
        return "<clock>" if isinstance(value, int | float) and 1.6e9 <= value < 2e9 else value

    def text(self, item: str, text: str) -> None:
        (self.out / item).parent.mkdir(parents=True, exist_ok=True)
        (self.out / item).write_text(self.mask(text))

    def json(self, item: str, value: Any) -> None:
        self.text(f"{item}.json", json.dumps(self.mask(value), indent=1, sort_keys=True, ensure_ascii=False) + "\n")

    def folder(self, item: str, folder: Path, skip: str = r"^$") -> None:
        """Write texts masked and binary files as digests; JSON lines are items of one line each."""
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if not path.is_file() or re.search(skip, name):
                continue
            data = path.read_bytes()
            if path.suffix in (".json", ".jsonl"):
                rows = [data] if path.suffix == ".json" else data.splitlines()
                dumped = [json.dumps(self.mask(json.loads(row)), ensure_ascii=False) + "\n" for row in rows]
                self.text(f"{item}/{name}", "".join(dumped))
            elif path.suffix in (".md", ".yaml", ".html", ".txt", ".csv", ""):
                self.text(f"{item}/{name}", data.decode())
            else:
                self.text(f"{item}/{name}.sha256", f"{hashlib.sha256(data).hexdigest()} {len(data)} bytes\n")

    def env(self) -> dict[str, str]:
        return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ} | {
            "PYTHONPATH": str(self.code), "RL2F_HOME": str(WORK / "home"), "RL2F_PLUGINS": str(WORK / "parity.py"),
            "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb",
            "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def rl2f(self, *args: object, item: str = "", stdin: str = "") -> subprocess.CompletedProcess[str]:
        words = list(map(str, args))
        done = subprocess.run([sys.executable, "-m", "app.cli", *words], cwd=WORK, env=self.env(), input=stdin,
                              capture_output=True, text=True, timeout=900)
        if item:
            self.text(f"{item}.txt", f"$ rl2f {' '.join(words)}\n{done.stdout}---\n{done.stderr}---\nexit code {done.returncode}\n")
        return done

def collect_help(rec: Recorder, _: Path) -> None:
    pending: list[list[str]] = [[]]
    while pending:
        words = pending.pop()
        text = rec.rl2f(*words, "--help", item=f"help/{'_'.join(['rl2f', *words])}").stdout
        listed = text.partition("\nCommands:\n")[2]
        pending += [[*words, name] for name in re.findall(r"^  ([a-z][\w-]*)", listed, re.MULTILINE)]

def train(rec: Recorder, part: str, runs: dict[str, tuple[str, list[str]]]) -> None:
    for name, (preset, changes) in runs.items():
        overrides = [word for change in (*SMALL, *changes) for word in ("--set", change)]
        done = rec.rl2f("train", preset, *overrides, "--out", SPACE / "runs" / f"run-{name}")
        rec.text(f"{part}/{name}/exit", f"{done.returncode}\n{done.stderr[-2000:] if done.returncode else ''}")
        rec.folder(f"{part}/{name}", SPACE / "runs" / f"run-{name}", skip=VOLATILE)

VOLATILE = r"^(state|retained|log|lock|heartbeat|progress|worker)|\.(png|html|lock|log)$"

def collect_runs(rec: Recorder, inputs: Path) -> None:
    train(rec, "runs", RUNS)
    run, arms = SPACE / "runs" / "run-dialogue", ("--arm", "original", "--arm", "contentless", "--arm", "redacted")
    for name, words in {
        "fork": ("fork", run, "dialogue:train:warmup/1/1/0", *arms, "--samples", 2, "--checkpoint", "rl2f@1"),
        "eval": ("eval", f"{run}:rl2f@1", "--set", "evaluation.num_tasks=2", "--set", "evaluation.conditions=[hints,contentless]"),
        "hints": ("hint-value", run, "--num-hints", 2, "--samples", 2, "--checkpoint", "rl2f@1"),
        "levels": ("levels", "--environment", "knights_knaves", "--model", "tiny-random", "--level", 2, "--tasks", 2),
        "rescore": ("leaks", "rescore", run, "--detector", "mentions", "--workers", 1),
        "preflight": ("preflight", "quickstart", *(word for change in SMALL for word in ("--set", change))),
    }.items():
        rec.rl2f(*words, "--out", SPACE / "runs" / f"run-x-{name}", item=f"runs/{name}/output")
        rec.folder(f"runs/{name}", SPACE / "runs" / f"run-x-{name}", skip=VOLATILE)
    rec.rl2f("reproduce", SPACE / "runs" / "run-parity", item="runs/reproduce")
    if rec.out == inputs.parent:
        shutil.rmtree(inputs, ignore_errors=True)
        shutil.copytree(SPACE / "runs", inputs / "runs")
        shutil.copytree(rec.code / "data/example_runs/quickstart", inputs / "runs" / "quickstart")

def collect_exports(rec: Recorder, inputs: Path) -> None:
    shutil.copytree(inputs / "workspace", SPACE)
    runs, space = SPACE / "runs", ("--workspace", SPACE)
    run, all_dialogues = runs / "run-dialogue", ("--include-controls", "--include-test", "--include-demonstrations", "--include-base")
    types = ("stepwise_supervision", "unpaired_preference", "preference", "messages", "prompt_completion")
    formats = [word for name in types for word in ("--format", name)]
    for name, words in {
        "example": (runs / "quickstart",),
        "example_all": (runs / "quickstart", *all_dialogues, "--privileged", "--match", "history", "--pairs", 2),
        "numbers": (1, 3, *all_dialogues, *space),
        "labeled": (1, *all_dialogues, "--labeled-only", "--labels", "human", *space),
        "leaky": (run, *all_dialogues, "--match", "attempt", "--seed", 3),
        "evaluation": (run, "--phase", "evaluation", "--condition", "hints", *all_dialogues, "--file", "jsonl"),
        "reflect": (runs / "run-reflect", *all_dialogues, "--steps", "1-2", "--file", "jsonl"),
        "nothing": (runs / "quickstart", "--steps", "900-901"), "unknown": (runs / "quickstart", "--stage", "nosuch"),
    }.items():
        rec.rl2f("export", *words, *formats, "--name", "goldens", "--out", WORK / name, item=f"exports/{name}.output")
        rec.folder(f"exports/{name}", WORK / name)
    for name, words in {"example": ("quickstart",), "leaky": ("run-dialogue", "--dialogues", 3), "fork": ("run-x-fork",)}.items():
        rec.rl2f("share", runs / words[0], *words[1:], "--out", WORK / f"share-{name}", item=f"exports/share-{name}.output")
        rec.folder(f"exports/share-{name}", WORK / f"share-{name}")
    for name in ("safetensors", "peft", "gguf-q8_0"):
        rec.rl2f("models", "export", f"{run}@rl2f@1", "--format", name, "--out", WORK / f"model-{name}", item=f"exports/{name}.output")
        rec.folder(f"exports/model-{name}", WORK / f"model-{name}")

def collect_commands(rec: Recorder, inputs: Path) -> None:
    shutil.copytree(inputs / "workspace", SPACE)
    runs, space, csv = SPACE / "runs", ("--workspace", SPACE), rec.code / "data/own_questions/sample.csv"
    benchmark = [(rec.code / "data/leak_benchmark" / f"{name}.jsonl").read_text().splitlines()[0] for name in ("secret_code", "maze")]
    rows = [{**row, "settings": row["environment"], "environment": row["environment"]["type"]} for row in map(json.loads, benchmark)]
    verify = '{"problem": "What is 2 + 3?", "answer": "5", "attempt": "<answer>5</answer>"}\nno json\n'
    for number, (*words,) in enumerate([
        ("replay", runs / "quickstart"), ("replay", runs / "run-dialogue", "--dialogue", 2),
        ("replay", runs / "run-fresh", "--dialogue", 1), ("replay", runs / "run-reflect", "--phase", "evaluation"),
        ("replay", runs / "quickstart", "--step", 10, "--limit", 5), ("replay", runs / "quickstart", "--dialogue", "no"),
        ("report", runs / "run-dialogue", runs / "run-reflect"), ("results", "collect", runs / "run-dialogue", "--out", "res"),
        ("config", "schema"), ("config", "show", "quickstart"), ("config", "cells", "methods"), ("config", "validate", "quickstart"),
        ("config", "validate", "nosuch"), ("config", "show", "quickstart", "--set", "a.b=1"), ("leaks", runs / "run-dialogue"),
        ("leaks", runs / "run-dialogue", "--json"), ("leaks", "check", "-"), ("leaks", "report", *space),
        ("leaks", "report", *space, "--json", "--group-by", "run"), ("leaks", "fit", "--run", 1, *space), ("verify", "arithmetic", "-"),
        ("data", "check", csv), ("audit", *space), ("token", "list", *space), ("train", "quickstart", "--set", "stages.0.steps=no"),
        ("fork", runs / "run-dialogue", "no"), ("models", "export", runs / "run-dialogue@9", "--out", "m"), ("eval",),
        ("share", 99, *space), ("export", 99, *space, "--out", "o"), ("import", csv, *space), ("reindex", *space),
        ("reindex", "nosuch", *space), ("models", "list"), ("preflight", "quickstart", "--dry"),
    ]):
        item = f"commands/{number:02}-{'-'.join(str(word) for word in words[:2] if '/' not in str(word))}"
        rec.rl2f(*words, item=item, stdin="\n".join(map(json.dumps, rows)) if words[1:2] == ["check"] else verify)

class Server:
    """A server process of the product."""

    def __init__(self, rec: Recorder, *words: object) -> None:
        with (WORK / "server.log").open("w") as log:
            command = [sys.executable, "-m", "app.cli", *map(str, words), "--port", "0"]
            self.process = subprocess.Popen(command, cwd=WORK, env=rec.env(), stdout=log, stderr=log)
        for _ in range(900):
            if match := re.search(r"http://127\.0\.0\.1:\d+", (WORK / "server.log").read_text()):
                self.url = match.group()
                return
            time.sleep(0.2)
        raise RuntimeError((WORK / "server.log").read_text())

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)

    def request(self, path: str, body: object = None, token: str = "") -> tuple[int, Any]:
        """Return the status, and the response as JSON if it is JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                status, text = response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        with contextlib.suppress(ValueError):
            return status, json.loads(text)
        return status, text

class Client:
    """Calls the endpoints of a studio by name and records each response in the folder `part`."""

    def __init__(self, rec: Recorder, server: Server, part: str) -> None:
        self.rec, self.server, self.part = rec, server, part
        new = ("token", "new", "--workspace", SPACE, "--name")
        self.tokens = {"read": rec.rl2f(*new, f"r-{part}", "--scope", "read").stdout.strip(),
                       "all": rec.rl2f(*new, f"a-{part}", "--scope", "run", "--scope", "label").stdout.strip()}
        self.listed = server.request("/gradio_api/info", token=self.tokens["read"])[1]["named_endpoints"]
        self.parameters = {name[1:]: info["parameters"] for name, info in self.listed.items()}

    def call(self, name: str, item: str = "", scope: str = "read", /, **values: Any) -> Any:
        """Return the result, or the status of an error; `run_id` and `run_ids` are old names of `run` and `runs`."""
        data, last = [], 0
        values = {OLD_NAMES.get(key, key): value for key, value in values.items()}
        known = {parameter["parameter_name"] for parameter in self.parameters.get(name, ())}
        for parameter in self.parameters.get(name, ()):
            key = parameter["parameter_name"]
            given = None if OLD_NAMES.get(key) in known else values.get(OLD_NAMES.get(key, key))
            data.append(parameter.get("parameter_default") if given is None else given)
            last = len(data) if given is not None else last
        status, body = self.server.request(f"/gradio_api/run/{name}", {"data": data[:last]}, self.tokens[scope])
        result = body.get("data", body.get("error", body)) if isinstance(body, dict) else body
        self.rec.json(f"{self.part}/{item or name}", {"status": status, "result": result})
        return result[0] if status == 200 else status

    def stream(self, name: str, **values: Any) -> None:
        """Record the last update of a stream."""
        status, body = self.server.request(f"/gradio_api/call/v2/{name}", values, self.tokens["all"])
        if status == 200:
            status, body = self.server.request(f"/gradio_api/call/{name}/{body['event_id']}", None, self.tokens["all"])
            body = [json.loads(line[6:]) for line in body.splitlines() if re.match(r"data: [\[{]", line)][-1:]
        self.rec.json(f"{self.part}/writes/stream-{name}", {"status": status, "result": body})


OLD_NAMES = {"run_id": "run", "run_ids": "runs"}
TALK = [{"role": role, "content": text} for role, text in (("user", "2+2?"), ("assistant", "5"), ("user", "No."), ("assistant", "4"))]
WRITES: list[tuple[str, dict[str, Any]]] = [
    ("pause_queue", {}), ("tag_run", {"run": 1, "tags": ["b", "a"]}), ("add_note", {"run": 1, "text": "A note.", "author": "Ann"}),
    ("launch_run", {"preset": "quickstart", "overrides": {"stages.0.steps": 2}}), ("launch_run", {"preset": "nosuch"}),
    ("launch_run", {"yaml": "stages: 3"}), ("preflight_config", {"preset": "quickstart"}),
    ("schedule_run", {"trigger": "cron", "when": "0 3 1 1 *", "preset": "quickstart", "name": "yearly"}),
    ("import_rollouts", {"file_name": "talk.jsonl", "content": json.dumps({"messages": TALK})}),
    ("import_rollouts", {"file_name": "bad.jsonl", "content": "{}"}), ("start_chat", {"model": "nosuch"}),
    ("add_data_file", {"name": "q.csv", "text": "question,answer\n2+2?,4\n"}), ("check_data_file", {"file": "q-9297576b.csv"}),
    ("start_export", {"run_ids": [1], "settings": {"formats": ["messages"], "filter": {"include_test": True}}}),
    ("start_export", {"run_ids": [1], "settings": {"formats": ["nosuch"]}}), ("stop_run", {"run": 1}), ("delete_runs", {"run_ids": [99]}),
    ("export_model", {"run": 1, "checkpoint": "rl2f@24"}), ("export_model", {"run": 1, "checkpoint": "nosuch"}),
    ("evaluate_checkpoint", {"run": 1, "checkpoint": "rl2f@24"}),
    ("start_fork", {"run": 3, "event_id": "dialogue:train:warmup/1/1/0", "turn": 0, "checkpoints": ["base"], "arms": [{"hint": "original"}]}),
    ("rerun_redacted", {"run": 3, "event_id": "dialogue:train:warmup/1/1/0", "turn": 0}),
    ("start_task_chat", {"source": "run:1", "model": "tiny-random", "index": 0, "sampling": {"seed": 3, "max_new_tokens": 8}}),
    ("start_chat", {"model": "tiny-random", "sampling": {"seed": 5, "max_new_tokens": 12}, "device": "cpu"}), ("fit_detector", {"run_ids": [1]}),
]
EXTRA: list[tuple[str, dict[str, Any]]] = [
    *(("list_dialogues", {"filter": {"run": run, **fields}, "limit": 3}) for run, fields in (
        (1, {}), (1, {"phase": "evaluation"}), (1, {"stage": "rl2f"}), (1, {"condition": "hints"}), (3, {"leak": "flagged"}),
        (1, {"phase": "nosuch"}), (1, {"nosuch": 1}))),
    ("list_dialogues", {"limit": 200}), ("list_dialogues", {"filter": {"run": 99}}), ("get_run", {"run": 99}), ("get_run", {"run": "x"}),
    ("list_runs", {"search": "dialogue"}), ("list_runs", {"kind": "fork"}), ("list_runs", {"sort": "name"}), ("list_runs", {"sort": "no"}),
    ("detector_report", {"run": 1}), ("detector_report", {"group_by": "run"}), ("detector_report", {"run": 3, "include_controls": True}),
    ("compare_charts", {"run_ids": [1, 3], "names": ["reward", "loss"], "smoothing": 0.5}), ("run_charts", {"run": 1, "names": ["loss"]}),
    ("compare_evaluations", {"run_ids": [1, 3]}), ("run_histogram", {"run": 1, "stage": "rl2f", "step": 20}),
    ("next_hints_to_label", {"annotator": "ann", "queue": {"run": 3, "selection": "flagged"}}), ("run_form", {"kind": "eval"}),
    ("check_config", {"preset": "quickstart", "overrides": {"seed": -1}}), ("preview_schedule", {"trigger": "cron", "when": "61 * * * *"}),
    ("count_export", {"run_ids": [1], "filter": {"step_to": 5}}), ("export_chat", {"chat": 1, "format": "preference"}),
]
FILL: dict[str, Any] = {
    "runs": [1, 3], "names": ["reward", "loss"], "stage": "rl2f", "step": 1, "checkpoints": ["base"], "when": "2030-01-01T10:00",
    "arms": [{"hint": "original"}, {"hint": "edited", "text": "Look again."}], "text": "The code is A A B B.", "trigger": "date",
    "yaml": "environment: {type: secret_code}\nstages: [{method: rl2f, steps: 2}]\n", "data": {"seed": 3}, "target": "next",
    "file": "q-9297576b.csv", "folder": "nosuch", "name": "quickstart",
}


def write(client: Client, event: str) -> None:
    """Change the workspace; no worker starts, because the queue is paused."""
    for number, (name, values) in enumerate(WRITES):
        client.call(name, f"writes/{number:02}-{name}", "all", **values)
    for number, hint in enumerate(client.call("next_hints_to_label", queue={"run": 1}, limit=12)["hints"]):
        fields = {key: hint[key] for key in ("run", "event_id", "turn")} | {"queue": {"run": 1}, "note": "why" * (number % 2)}
        for annotator in ("ann", "bob")[: 1 + number % 2]:
            label = ("leak", "no_leak", "unsure")[number % 3]
            client.call("label_hint", f"writes/label-{number}-{annotator}", "all", annotator=annotator, label=label, **fields)
    client.call("undo_label", "writes/undo", "all", annotator="bob")
    client.call("add_dialogue_note", "writes/note", "all", run=1, event_id=event, text="Odd.", turn=0, author="Ann")
    client.stream("continue_task_chat", chat=1)
    client.stream("send_message", chat=2, text="Hello.")
    client.call("unload_chat_model", "writes/unload", "all")
    client.stream("follow_chat", chat=2)


def read(client: Client, inputs: Path, only: str = ".*") -> None:
    """Call every endpoint with a token that may only read (those that write refuse it) for some dialogues of each run."""
    events = {}
    for number, folder in enumerate(sorted((inputs / "runs").iterdir()), 1):
        rows = [row for row in map(json.loads, (folder / "events.jsonl").open()) if row["type"] == "dialogue"]
        leaks = [row for row in rows if '"leaked": true' in json.dumps(row)]
        events[number] = dict.fromkeys(row["id"] for row in (*rows[len(rows) // 2 :][:1], *rows[-1:], *leaks[:1]))
    for name, parameters in client.parameters.items():
        if not re.fullmatch(only, name) or name == "follow_chat":
            continue
        keys: dict[str, bool] = {}
        for key, has_default in ((each["parameter_name"], each["parameter_has_default"]) for each in parameters):
            keys[OLD_NAMES.get(key, key)] = has_default and OLD_NAMES.get(key) not in keys
        values = {key: FILL[key] for key, has_default in keys.items() if not has_default and key in FILL}
        choices: list[dict[str, Any]] = [{"chat": chat} for chat in (1, 2, 9)] if "chat" in keys else [{}]
        if "event_id" in keys:
            choices = [{"run": run, "event_id": event} for run, ids in events.items() for event in ids]
        elif keys.get("run") is False:
            choices = [{"run": run} for run in events]
        for choice in [{**choice, "turn": turn} for choice in choices for turn in (0, 1)] if "turn" in keys else choices:
            item = "-".join(re.sub(r"\W+", "_", str(value)) for value in choice.values())
            if client.call(name, f"{name}/{item or 'plain'}", **values, **choice) == 403:
                break
    for number, (name, values) in enumerate(EXTRA):
        if re.fullmatch(only, name):
            client.call(name, f"{name}/extra-{number:02}", **values)


def collect_studio(rec: Recorder, inputs: Path) -> None:
    for folder in (inputs / "runs").glob("run-*"):
        shutil.copytree(folder, SPACE / "runs" / folder.name)
    with contextlib.closing(Server(rec, "serve", "--workspace", SPACE)) as server:
        client = Client(rec, server, "studio")
        for name, info in client.listed.items():
            rec.json(f"studio/listing{name}", info)
        write(client, "dialogue:train:warmup/1/0/0")
        read(client, inputs)
        rec.rl2f("reindex", "--workspace", SPACE, item="studio/reindex")
        client.part = "studio/reindexed"
        read(client, inputs, "get_dialogue|reveal_answer|hint_to_label|list_dialogues")
    if rec.out == inputs.parent:
        shutil.rmtree(inputs / "workspace", ignore_errors=True)
        shutil.copytree(SPACE, inputs / "workspace")


def collect_old(rec: Recorder, inputs: Path) -> None:
    shutil.copytree(inputs / "workspace", SPACE)
    with contextlib.closing(Server(rec, "serve", "--workspace", SPACE)) as server:
        read(Client(rec, server, "old"), inputs)


def collect_models(rec: Recorder, inputs: Path) -> None:
    shutil.copytree(inputs / "runs", SPACE / "runs")
    run = SPACE / "runs" / "run-dialogue"
    with contextlib.closing(Server(rec, "serve-model", f"{run}@rl2f@1", f"{run}@ppo@1", "--base")) as server:
        chat = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 8, "seed": 1}
        for name in ("run-dialogue@rl2f@1", "run-dialogue@ppo@1", "tiny-random", "nosuch"):
            for number, changes in enumerate(({}, {"temperature": 0}, {"n": 2, "logprobs": True, "top_logprobs": 2}, {"stream": True},
                                              {"stop": ["e"], "return_token_ids": True}, {"top_p": 0.5}, {"n": 0})):
                status, body = server.request("/v1/chat/completions", {"model": name, **chat, **changes})
                if isinstance(body, str):  # a stream, whose division into events depends on the clock
                    rows = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
                    body = ["".join(str(row["choices"][0]["delta"].get("content") or "") for row in rows if row["choices"]), sorted(rows[0])]
                rec.json(f"models/chat-{name}-{number}", [status, body])
            prompt = {"model": name, "prompt": "One two", "max_tokens": 4, "seed": 2, "echo": True, "logprobs": 1}
            rec.json(f"models/completion-{name}", server.request("/v1/completions", prompt))
        for path in ("/v1/models", "/v1/nosuch", "/health"):
            rec.json(f"models/get{path.replace('/', '-')}", server.request(path))


PARTS = {"help": collect_help, "runs": collect_runs, "presets": lambda rec, inputs: train(rec, "presets", PRESETS), "studio": collect_studio,
         "old": collect_old, "models": collect_models, "exports": collect_exports, "commands": collect_commands}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["freeze", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--code", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="folder for the compared items")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    folder, code = args.folder.resolve(), args.code.resolve()
    with open(f"{WORK}.lock", "w") as lock, tempfile.TemporaryDirectory() as temporary:
        fcntl.flock(lock, fcntl.LOCK_EX)
        out = folder if args.action == "freeze" else args.keep or Path(temporary)
        for part in args.only:
            started = time.monotonic()
            shutil.rmtree(WORK, ignore_errors=True)
            (WORK / "home").mkdir(parents=True)
            (WORK / "home" / "models").symlink_to(Path.home() / ".cache" / "rl2f" / "models")
            (WORK / "parity.py").write_text(PLUGIN)
            shutil.rmtree(out / part, ignore_errors=True)
            PARTS[part](Recorder(out, code), folder / "inputs")
            print(f"{part}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        return 0 if args.action == "freeze" else compare(folder, out, args.only)


def split_texts(value: Any) -> Any:
    """Replace texts of several lines by lists of lines, for readable differences."""
    if isinstance(value, dict):
        return {key: split_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [split_texts(item) for item in value]
    return value.split("\n") if isinstance(value, str) and "\n" in value else value


def lines_of(path: Path) -> list[str]:
    """Return the lines of an item, masked again, so that new masks need no new freeze; JSON is pretty-printed."""
    rec, text = Recorder(path.parent, Path("<code>")), path.read_text()
    if path.suffix in (".jsonl", ".json"):
        text = re.sub(r"(?<=[ \[])<clock>(?=[,\]}\n])", '"<clock>"', text)
        rows = [json.loads(row) for row in (filter(None, text.split("\n")) if path.suffix == ".jsonl" else [text])]
        text = "\n".join(json.dumps(split_texts(rec.mask(row)), indent=1, ensure_ascii=False) for row in rows)
    return str(rec.mask(text)).splitlines()


def compare(old: Path, new: Path, parts: Iterable[str]) -> int:
    """Print the items that differ, those with equal differences together; return 1 if there is any."""
    roots = (old, new)
    names = {path.relative_to(root) for root in roots for part in parts for path in (root / part).rglob("*") if path.is_file()}
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        before, after = (lines_of(root / name) if (root / name).exists() else None for root in roots)
        if before != after:
            diff = [line[:400] for line in difflib.unified_diff(before or [], after or [], lineterm="", n=1)][2:]
            shown = "\n".join("@@" if line.startswith("@@") else line for line in diff[:15])
            groups.setdefault("is new" if before is None else "is missing" if after is None else shown, []).append(str(name))
    for shown, members in groups.items():
        print(f"== {len(members)} × {', '.join(members[:8])}{' …' if len(members) > 8 else ''}\n{shown}")
    print(f"{sum(map(len, groups.values()))} of {len(names)} items differ")
    return 1 if groups else 0


if __name__ == "__main__":
    sys.exit(main())
