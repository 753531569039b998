"""Measure and check a GPU: `python tests/gpu/run.py --bundle FOLDER [FOLDER …]`.

The script needs torch, this source tree, and the parts of `prepare.py` if the machine has no network. It installs the
wheels of the bundle into a temporary directory, and nothing from the network. The parts of `parts.py` run one after
another in the order of `PARTS`, each in a process of its own with a time limit. A result is stored when its part ends;
a part that is ended at its limit keeps what it had measured. The results go to `DEVICE/COMMIT.json` in `--out`, by
default `$OUT` or `data/results/gpu`, beside the other parts that the file has. The exit code is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PARTS = {
    "machine": 60, "quickstart": 200, "rollout": 120, "update": 120, "update_64": 120, "micro_batches": 60,
    "shape": 100, "decode": 90, "resume": 90, "adapters": 60, "bench": 120, "compile": 120,
}  # fmt: skip
"""Names of the parts in the order in which they run, with their limits in seconds on a GPU."""
SLOWER = {"cuda": 1, "cpu": 5}
"""Factor of the limits, by device."""


def assemble(folders: Sequence[Path], target: Path) -> str:
    """Extract the parts below some folders into `target`, which gets `model` and `wheels`; return their commit.

    Raises `ValueError` if a part is missing or damaged, or if parts belong to different bundles.
    """
    entries: dict[int, dict[str, Any]] = {}
    for path in sorted(path for folder in folders for path in folder.rglob("part.json")):
        entry = json.loads(path.read_text(encoding="utf-8"))
        entries[entry["number"]] = {**entry, "path": path.with_name("piece")}
    names = ", ".join(map(str, folders))
    if len({entry["bundle"] for entry in entries.values()}) != 1:
        raise ValueError(f"{names}: {'parts of different bundles' if entries else 'no part.json'}.")
    count = next(iter(entries.values()))["parts"]
    if missing := sorted(set(range(1, count + 1)) - set(entries)):
        raise ValueError(f"{names}: parts {missing} of {count} are missing.")
    archive = target / "archive.tar"
    with open(archive, "wb") as file:
        for _, entry in sorted(entries.items()):
            data = entry["path"].read_bytes()
            if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                raise ValueError(f"The checksum of {entry['path']} differs: the part is damaged.")
            file.write(data)
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    archive.unlink()
    for low in sorted((target / "model").glob("*.low")):
        join_weights(low)
    return str(entries[1]["commit"])


def join_weights(low: Path) -> None:
    """Replace `NAME.low` and `NAME.high.*.xz` by the file `NAME`, whose even and odd bytes they have."""
    chunks = sorted(low.parent.glob(f"{low.stem}.high.*.xz"))
    with ThreadPoolExecutor() as pool:
        high = b"".join(pool.map(lambda path: lzma.decompress(path.read_bytes()), chunks))
    even = low.read_bytes()
    data = bytearray(len(even) + len(high))
    data[0::2], data[1::2] = even, high
    low.with_suffix("").write_bytes(data)
    for path in (low, *chunks):
        path.unlink()


def install_wheels(folder: Path, target: Path) -> list[str]:
    """Install the wheels of a folder into `target`, which comes first on the path; return their names."""
    wheels = sorted(folder.glob("*.whl"))
    if wheels:
        options = ["--quiet", "--no-index", "--no-deps", "--target", str(target)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *map(str, wheels)], check=True)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH")]))
    return [wheel.name for wheel in wheels]


class Results:
    """Results of the parts, written after each of them.

    Args:
        out: Folder of the results.
        commit: Commit of the source; empty if unknown.
        fields: Other fields of the file.
    """

    def __init__(self, out: Path, commit: str, **fields: Any) -> None:
        self.out, self.name, self.start = out, f"{commit[:7] or 'unknown'}.json", time.monotonic()
        self.path = out / self.name
        self.data: dict[str, Any] = {"commit": commit, "date": time.strftime("%Y-%m-%d %H:%M"), **fields, "parts": {}}

    def run(self, part: str, command: Sequence[str], found: Path, limit: float) -> None:
        """Execute a part, which writes its result to `found`, for at most `limit` seconds, and store the result."""
        print(f"-- {part}, at most {limit:.0f} s", flush=True)
        start = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        error = None
        try:
            if process.wait(limit) != 0:
                error = f"The process ended with {process.returncode}."
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            error = f"The part was ended after {limit:.0f} s."
        result = json.loads(found.read_text(encoding="utf-8")) if found.is_file() else {}
        if error is not None:
            result.setdefault("error", error)
        seconds = round(time.monotonic() - start, 2)
        self.data["parts"][part] = {"ok": error is None, **result, "part_seconds": seconds}
        if part == "machine" and "name" in result:
            self.path = self.out / re.sub(r"[^a-z0-9]+", "-", result["name"].lower()).strip("-") / self.name
            if self.path.is_file():  # an earlier call with other parts
                earlier = json.loads(self.path.read_text(encoding="utf-8"))
                self.data["parts"] = earlier["parts"] | self.data["parts"]
        self.data["seconds"] = round(time.monotonic() - self.start, 1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(self.data["parts"][part])[:1000], flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, nargs="+", default=[], help="Folders with the parts of prepare.py.")
    parser.add_argument("--model", help="Model; by default that of the bundle, otherwise smollm2-135m.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS), help="All by default.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "data" / "results" / "gpu"))
    parser.add_argument("--minutes", type=float, default=9.0, help="Limit of all parts.")
    options = parser.parse_args(argv)
    end = time.monotonic() + 60 * options.minutes
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as made:
        folder, model, commit = Path(made), options.model or "smollm2-135m", ""
        wheels: list[str] = []
        if options.bundle:
            commit = assemble(options.bundle, folder)
            wheels = install_wheels(folder / "wheels", folder / "packages")
            model = options.model or str(folder / "model")
        results = Results(options.out, commit, device=options.device, wheels=wheels)
        for part in dict.fromkeys(["machine", *options.parts]):
            limit = min(PARTS[part] * SLOWER[options.device], end - time.monotonic())
            if limit < 1:
                print(f"-- {part}: no time is left")
                break
            found = folder / f"{part}.json"
            command = [sys.executable, str(ROOT / "tests" / "gpu" / "parts.py"), part, model, options.device]
            results.run(part, [*command, str(folder), str(found)], found, limit)
    print(f"Results: {results.path}")
    return 0 if all(part["ok"] for part in results.data["parts"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
