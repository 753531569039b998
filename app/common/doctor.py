"""What this machine has, what is missing, and the command that fixes it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
CORE = ("torch", "transformers", "trl", "peft", "accelerate", "safetensors", "tokenizers", "gguf", "pydantic", "plotly")
MIN_MEMORY = 4e9
"""Bytes that the quickstart model takes to train, with room to spare."""
MIN_DISK = 3e9
"""Bytes that a model and a run take."""


def examine() -> dict[str, Any]:
    """The whole report as plain data: versions, devices, memory, disk, models, browser, findings."""
    findings: list[dict[str, Any]] = []
    report: dict[str, Any] = {
        "rl2f": _version("rl2f"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages(findings),
        "devices": devices(findings),
        "memory": memory(findings),
        "disk": disk(findings),
        "models": models(findings),
        "browser": browser(findings),
    }
    return {**report, "findings": findings}


def finding(findings: list[dict[str, Any]], what: str, fix: str, needed: bool = True) -> None:
    """Note something missing; `needed` where no experiment runs without it."""
    findings.append({"what": what, "fix": fix, "needed": needed})


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def packages(findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Installed and wanted versions of what `rl2f` depends on, with the extra that wants it."""
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(line) for line in metadata.requires("rl2f") or ()]
    except metadata.PackageNotFoundError:
        finding(findings, "rl2f itself is not installed in this Python.", "make setup")
        wanted = [Requirement(name) for name in CORE]
    result: dict[str, Any] = {}
    missing: dict[str, list[str]] = {}
    extras = metadata.metadata("rl2f").get_all("Provides-Extra") or [] if _version("rl2f") else []
    for requirement in wanted:
        extra = next((e for e in extras if requirement.marker and _only_for(requirement.marker, e)), None)
        if requirement.marker and extra is None and not requirement.marker.evaluate({"extra": ""}):
            continue
        held = _version(requirement.name)
        fits = held is not None and requirement.specifier.contains(held, prereleases=True)
        result[requirement.name] = {"installed": held, "wanted": str(requirement.specifier), "extra": extra}
        if not fits:
            named = f"{requirement.name}{requirement.specifier}" + (f" (found {held})" if held else "")
            missing.setdefault(extra or "", []).append(named)
    for extra, names in missing.items():
        target = f'"rl2f[{extra}]"' if extra else "rl2f"
        inside = f'-e ".[{extra}]"' if extra else "-e ."
        command = f"{sys.executable} -m pip install {inside if Path('pyproject.toml').exists() else target}"
        text = f"Packages missing{f' for the extra {extra}' if extra else ''}: {', '.join(names)}."
        finding(findings, text, command, needed=not extra)
    return result


def _only_for(marker: Any, extra: str) -> bool:
    return marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def devices(findings: list[dict[str, Any]]) -> dict[str, Any]:
    """The devices, what `auto` chooses, and the measured speed of its matrix product in GFLOP/s."""
    try:
        from rl2f_core.device import describe_devices, matmul_ceiling, resolve_device

        device, dtype = resolve_device()
        name = str(dtype).removeprefix("torch.")
        speed = round(matmul_ceiling(name, device.type), 1)
        return {"found": describe_devices(), "auto": {"device": device.type, "dtype": name, "matmul_gflops": speed}}
    except (ImportError, OSError, RuntimeError) as error:  # a broken torch is the thing to report
        finding(findings, f"torch cannot be used: {error}.", f"{sys.executable} -m pip install --force-reinstall torch")
        return {"found": [], "auto": None}


def memory(findings: list[dict[str, Any]]) -> dict[str, int]:
    """Main memory in bytes."""
    import psutil

    held = psutil.virtual_memory()
    if held.total < MIN_MEMORY:
        finding(
            findings,
            f"{held.total / 1e9:.1f} GB of memory is little for the quickstart.",
            "rl2f train data/configs/quickstart/quickstart.yaml --set model.name=tiny-random",
            needed=False,
        )
    return {"total": held.total, "available": held.available, "cores": os.cpu_count() or 1}


def disk(findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Free bytes where models and runs are kept."""
    from rl2f_core.model_store.store import cache_dir

    result: dict[str, Any] = {}
    for label, path in (("cache", cache_dir()), ("here", Path.cwd())):
        existing = next(p for p in (path, *path.parents) if p.exists())
        free = shutil.disk_usage(existing).free
        result[label] = {"path": str(path), "free": free, "writable": os.access(existing, os.W_OK)}
        if free < MIN_DISK:
            finding(findings, f"Only {free / 1e9:.1f} GB free at {path}.", "Free space, or set RL2F_HOME elsewhere.")
        if not result[label]["writable"]:
            finding(findings, f"{path} cannot be written.", "Set RL2F_HOME or change to a folder of your own.")
    return result


def models(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The models known by name and whether they are in the cache, whole."""
    from rl2f_core.errors import ModelError
    from rl2f_core.model_store.store import get_model, list_models

    result = []
    for entry in list_models():
        result.append({"name": entry.name, "path": str(entry.path) if entry.path else None, "bytes": entry.bytes})
        if entry.path is not None:
            try:
                get_model(entry.name)
            except ModelError as error:
                finding(findings, error.what, error.fix or f"rl2f models get {entry.name} --force")
        elif entry.name != "tiny-random":
            finding(findings, f"{entry.name} is not fetched yet.", f"rl2f models get {entry.name}", needed=False)
    return result


def browser(findings: list[dict[str, Any]]) -> str | None:
    """The path of a browser, which only the browser tests need."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        finding(findings, "No browser was found; browser tests need one.", "apt-get install chromium", needed=False)
    return path


def show(report: dict[str, Any]) -> None:
    """Print the report for people."""
    from app.common.console import human_bytes, out, table

    console = out()
    console.print(f"rl2f {report['rl2f']}, Python {report['python']}, {report['platform']}\n", markup=False)
    rows = [
        (name, held["installed"] or "missing", held["wanted"], held["extra"] or "")
        for name, held in report["packages"].items()
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
    held = report["memory"]
    console.print(
        f"memory: {human_bytes(held['available'])} free of {human_bytes(held['total'])}, {held['cores']} cores"
    )
    for label, place in report["disk"].items():
        console.print(f"disk ({label}): {human_bytes(place['free'])} free at {place['path']}", markup=False)
    for entry in report["models"]:
        state = f"{human_bytes(entry['bytes'])} at {entry['path']}" if entry["path"] else "not fetched"
        console.print(f"model {entry['name']}: {state}", markup=False)
    console.print(f"browser: {report['browser'] or 'none'}\n", markup=False)
    if not report["findings"]:
        console.print("Nothing is missing.", style="green")
    for item in report["findings"]:
        console.print(
            "Missing: " if item["needed"] else "Optional: ", style="red" if item["needed"] else "yellow", end=""
        )
        console.print(f"{item['what']} Fix: {item['fix']}", markup=False)
