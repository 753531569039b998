"""`rl2f doctor`: versions, devices, memory, disk and models of this machine, and commands that fix what is missing."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.options import AsJson
from app.commands.settings import options_of
from app.common.console import err, human_bytes, out, table
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from rl2f_core.config.model import ModelConfig

CORE = ("torch", "transformers", "trl", "peft", "accelerate", "safetensors", "tokenizers", "gguf", "pydantic", "plotly")
SHARES = ("of_matmul", "of_bandwidth")
KINDS = ("adapter", "full")
"""Trained weights in the table of memory."""
MIN_MEMORY_BYTES = 4e9
"""Memory for training the quickstart model."""
MIN_DISK_BYTES = 3e9
"""Disk space for a model and a run."""


def doctor(
    as_json: AsJson = False,
    bench: Annotated[
        bool, typer.Option("--bench", help="Measure rollout, update and memory of a model, in at most three minutes.")
    ] = False,
    model: ModelConfig = options_of("rl2f_core.config.model:ModelConfig", name="--model"),
) -> None:
    """Show versions, devices, memory, disk and cached models, and what is missing with the command that fixes it.

    The exit code is 1 if something is missing that an experiment needs. With --bench, the command measures a model
    instead and suggests settings.
    """
    if bench:
        _bench(model, as_json)
        return
    report = Doctor().examine()
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        show(report)
    if any(finding["needed"] for finding in report["findings"]):
        raise typer.Exit(1)


class Doctor:
    """Examination of this machine; `findings` collects what is missing."""

    def __init__(self) -> None:
        self.findings: list[JsonObject] = []

    def examine(self) -> JsonObject:
        """Return the whole report as plain data."""
        return {
            "rl2f": _version("rl2f"),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": self.packages(),
            "devices": self.devices(),
            "memory": self.memory(),
            "disk": self.disk(),
            "models": self.models(),
            "findings": self.findings,
        }

    def _add(self, what: str, fix: str, needed: bool = True) -> None:
        """Add something missing; `needed` is False if experiments run without it."""
        self.findings.append({"what": what, "fix": fix, "needed": needed})

    def packages(self) -> JsonObject:
        """Return installed and required versions of the dependencies."""
        from packaging.requirements import Requirement

        try:
            distribution = metadata.distribution("rl2f")
            required = [Requirement(line) for line in distribution.requires or ()]
            extras = distribution.metadata.get_all("Provides-Extra") or []
        except metadata.PackageNotFoundError:
            self._add("rl2f itself is not installed in this Python.", "make setup")
            required, extras = [Requirement(name) for name in CORE], []
        result: JsonObject = {}
        missing: dict[str, list[str]] = {}
        for requirement in required:
            marker, extra = requirement.marker, None
            if marker is not None and not marker.evaluate({"extra": ""}):
                extra = next((name for name in extras if marker.evaluate({"extra": name})), None)
                if extra is None:
                    continue
            installed = _version(requirement.name)
            result[requirement.name] = {"installed": installed, "wanted": str(requirement.specifier), "extra": extra}
            if installed is None or not requirement.specifier.contains(installed, prereleases=True):
                named = f"{requirement.name}{requirement.specifier}" + (f" (found {installed})" if installed else "")
                missing.setdefault(extra or "", []).append(named)
        python = shlex.quote(sys.executable)
        for extra, names in missing.items():
            target = f'"rl2f[{extra}]"' if extra else "rl2f"
            source = f'-e ".[{extra}]"' if extra else "-e ."
            command = f"{python} -m pip install {source if Path('pyproject.toml').exists() else target}"
            text = f"Packages missing{f' for the extra {extra}' if extra else ''}: {', '.join(names)}."
            self._add(text, command, needed=not extra)
        return result

    def devices(self) -> JsonObject:
        """Return the devices, the choices of `auto`, and its measured matmul speed in GFLOP/s."""
        try:
            from rl2f_core.models.backends.auto import choose_backend, installed_vllm
            from rl2f_core.models.device import describe_devices, matmul_ceiling, resolve_device

            device, dtype = resolve_device()
            name = str(dtype).removeprefix("torch.")
            speed = round(matmul_ceiling(name, device.type), 1)
            backend = choose_backend(device.type, installed_vllm())
            auto = {"device": device.type, "dtype": name, "matmul_gflops": speed,
                    "backend": backend.config.type, "reason": backend.reason}  # fmt: skip
            return {"found": describe_devices(), "auto": auto}
        except (ImportError, OSError, RuntimeError) as error:  # a broken torch
            self._add(
                f"torch cannot be used: {error}.",
                f"{shlex.quote(sys.executable)} -m pip install --force-reinstall torch",
            )
            return {"found": [], "auto": None}

    def memory(self) -> dict[str, int]:
        """Return the main memory in bytes."""
        import psutil

        memory = psutil.virtual_memory()
        if memory.total < MIN_MEMORY_BYTES:
            self._add(
                f"{memory.total / 1e9:.1f} GB of memory is little for the quickstart.",
                "rl2f train quickstart --set model.name=tiny-random",
                needed=False,
            )
        return {"total": memory.total, "available": memory.available, "cores": os.cpu_count() or 1}

    def disk(self) -> JsonObject:
        """Return the free bytes of the model cache and of the working directory."""
        from rl2f_core.models.store.store import cache_dir

        result: JsonObject = {}
        for label, path in (("cache", cache_dir()), ("here", Path.cwd())):
            existing = next(p for p in (path, *path.parents) if p.exists())
            free, writable = shutil.disk_usage(existing).free, os.access(existing, os.W_OK)
            result[label] = {"path": str(path), "free": free, "writable": writable}
            if free < MIN_DISK_BYTES:
                self._add(f"Only {free / 1e9:.1f} GB free at {path}.", "Free space, or set RL2F_HOME elsewhere.")
            if not writable:
                self._add(f"{path} cannot be written.", "Set RL2F_HOME or change to a folder of your own.")
        return result

    def models(self) -> list[JsonObject]:
        """Return the known models and whether they are in the cache."""
        from rl2f_core.errors import ModelError, rl2f_command
        from rl2f_core.models.store.store import get_model, list_models

        result = []
        for entry in list_models():
            result.append({"name": entry.name, "path": str(entry.path) if entry.path else None, "bytes": entry.bytes})
            if entry.path is not None:
                try:
                    get_model(entry.name)
                except ModelError as error:
                    self._add(error.what, error.fix or rl2f_command("models", "get", entry.name, "--force"))
            elif entry.name != "tiny-random":
                self._add(f"{entry.name} is not fetched yet.", rl2f_command("models", "get", entry.name), needed=False)
        return result


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def show(report: JsonObject) -> None:
    """Print the report as text."""
    console = out()
    console.print(f"rl2f {report['rl2f']}, Python {report['python']}, {report['platform']}\n", markup=False)
    rows = [
        (name, package["installed"] or "missing", package["wanted"], package["extra"] or "")
        for name, package in report["packages"].items()
    ]
    console.print(table("package", "installed", "wanted", "extra", rows=rows))
    console.print()
    for record in report["devices"]["found"]:
        details = [record.get("name", ""), "bfloat16 native" if record["bfloat16"] else "no native bfloat16"]
        if "memory" in record:
            details.append(human_bytes(record["memory"]))
        if "threads" in record:
            details.append(f"{record['threads']} threads")
        console.print(f"{record['device']}: {', '.join(filter(None, details))}", markup=False)
    if auto := report["devices"]["auto"]:
        console.print(f"auto: {auto['dtype']} on {auto['device']}, matrix product {auto['matmul_gflops']} GFLOP/s")
        console.print(f"backend auto: {auto['backend']}: {auto['reason']}", markup=False)
    memory = report["memory"]
    available, total = human_bytes(memory["available"]), human_bytes(memory["total"])
    console.print(f"memory: {available} free of {total}, {memory['cores']} cores")
    for label, disk in report["disk"].items():
        console.print(f"disk ({label}): {human_bytes(disk['free'])} free at {disk['path']}", markup=False)
    for entry in report["models"]:
        state = f"{human_bytes(entry['bytes'])} at {entry['path']}" if entry["path"] else "not fetched"
        console.print(f"model {entry['name']}: {state}", markup=False)
    console.print()
    if not report["findings"]:
        console.print("Nothing is missing.", style="green")
    for finding in report["findings"]:
        label, style = ("Missing: ", "red") if finding["needed"] else ("Optional: ", "yellow")
        console.print(label, style=style, end="")
        console.print(f"{finding['what']} Fix: {finding['fix']}", markup=False)


def _bench(model: ModelConfig, as_json: bool) -> None:
    """Measure a model and print the report."""
    from rl2f_core.learning.hardware.bench import benchmark

    report = benchmark(model, lambda text: err().print(text, markup=False))
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        show_bench(report)


def show_bench(report: JsonObject) -> None:
    """Print a report of `rl2f_core.learning.hardware.bench.benchmark` as text."""
    console = out()
    console.print(
        f"{report['model']} in {report['dtype']} on {report['device']}: matrix products "
        f"{report['matmul_gflops']:,.0f} GFLOP/s, memory {report['bandwidth_gb_per_second']:,.0f} GB/s",
        markup=False,
    )
    if report["load"] is not None and report["load"] > 0.1 * report["cores"]:
        console.print(f"Other programs are running (load {report['load']:.1f} on {report['cores']} cores).")
    speeds = ("prefill_tokens_per_second", "tokens_per_second")
    rollout = [
        (str(row["batch"]), *(f"{row[name]:,.0f}" for name in speeds), *(f"{row[name]:.0%}" for name in SHARES))
        for row in report["rollout"]
    ]
    header = ("rollout: batch", "prefill tokens/s", "decode tokens/s", "of matrix products", "of bandwidth")
    console.print(table(*header, rows=rollout))
    console.print(f"decode steps: {report['decode']}", markup=False)
    update = [
        (str(row["micro_batch_tokens"]), f"{row['tokens_per_second']:,.0f}", f"{row['of_matmul']:.0%}")
        for row in report["update"]
    ]
    console.print(table("update: tokens of a micro-batch", "tokens/s", "of matrix products", rows=update))
    sampled, trained = (1e3 / max(row["tokens_per_second"] for row in report[name]) for name in ("rollout", "update"))
    larger = "rollout" if sampled > trained else "update"
    console.print(f"A sampled token takes {sampled:.2g} ms, a token in an update {trained:.2g} ms: {larger} is larger.")
    peaks = (human_bytes(report[f"{part}_peak_bytes"]) for part in ("rollout", "update"))
    console.print("peak memory: rollout {}, with update {}".format(*peaks), markup=False)
    if agreement := report.get("agreement"):
        console.print(
            f"greedy tokens equal to {agreement['reference']}: {agreement['equal']:.0%}; logprobs differ by at most "
            f"{agreement['max_logprob_error']:.2g}",
            markup=False,
        )
    sizes = [
        (row["size"], *(human_bytes(row[f"{kind}_bytes"]) + ("" if row[f"{kind}_fits"] else " ✗") for kind in KINDS))
        for row in report["memory"]["sizes"]
    ]
    console.print(table("model size", "training an adapter", "training all weights", rows=sizes))
    console.print(f"✗ does not fit into {human_bytes(report['memory']['total'])}; activations come on top.\n")
    for suggestion in report["suggestions"]:
        console.print(f"{suggestion['set']}: {suggestion['why']}", markup=False)
    console.print(f"Measured in {report['seconds']:.0f} s.")
