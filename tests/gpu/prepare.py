"""Pack what `run.py` needs on a machine without a network: `python tests/gpu/prepare.py FOLDER`.

    part-1/piece    first 60 MiB of a tar archive: model/ (all files of the model), wheels/ (`--packages`)
    part-1/part.json    number, number of parts, SHA-256 of the piece and of the bundle, commit
    part-2/ …

Parts may be transferred one at a time. High bytes of the weights in bfloat16 (sign and exponent) are compressed apart
from the low bytes, which hardly compress: a model of 135M weights needs four parts.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PIECE_BYTES = 60 * 2**20 - 4096
CHUNK_BYTES = 8_000_000
"""High bytes that are compressed at once; chunks are decompressed in parallel."""
ROOT = Path(__file__).resolve().parents[2]


class Parts(io.RawIOBase):
    """A file whose content is divided into `part-N/piece` below a folder."""

    def __init__(self, folder: Path, piece_bytes: int) -> None:
        self.folder, self.piece_bytes = folder, piece_bytes
        self.sizes: list[int] = []

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Append bytes to the last piece and begin new ones as needed."""
        left = memoryview(data)
        while left:
            if not self.sizes or self.sizes[-1] == self.piece_bytes:
                self.sizes.append(0)
                self.path(len(self.sizes)).parent.mkdir(parents=True)
            taken = left[: self.piece_bytes - self.sizes[-1]]
            with open(self.path(len(self.sizes)), "ab") as file:
                file.write(taken)
            self.sizes[-1] += len(taken)
            left = left[len(taken) :]
        return len(data)

    def path(self, number: int) -> Path:
        """Return the piece of a part, counted from 1."""
        return self.folder / f"part-{number}" / "piece"

    def describe(self, commit: str) -> None:
        """Write the `part.json` of all parts."""
        numbers = range(1, len(self.sizes) + 1)
        digests = [hashlib.sha256(self.path(number).read_bytes()).hexdigest() for number in numbers]
        shared = {"parts": len(digests), "bundle": hashlib.sha256("".join(digests).encode()).hexdigest()}
        for number, digest in zip(numbers, digests, strict=True):
            entry = {"number": number, "sha256": digest, "commit": commit, **shared}
            self.path(number).with_name("part.json").write_text(json.dumps(entry), encoding="utf-8")


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file to an archive."""
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def pack(model: Path, wheels: Sequence[Path], target: Path, commit: str, piece_bytes: int = PIECE_BYTES) -> int:
    """Write the parts of a model folder and of wheels below `target`; return their number."""
    parts = Parts(target, piece_bytes)
    with tarfile.open(fileobj=parts, mode="w|", bufsize=2**20) as tar, ThreadPoolExecutor() as pool:
        for path in sorted(path for path in model.iterdir() if path.is_file()):
            data, name = path.read_bytes(), f"model/{path.name}"
            if path.suffix != ".safetensors":
                add(tar, name, data)
                continue
            high = [data[1::2][start : start + CHUNK_BYTES] for start in range(0, len(data) // 2, CHUNK_BYTES)]
            for number, chunk in enumerate(pool.map(lambda part: lzma.compress(part, preset=3), high)):
                add(tar, f"{name}.high.{number:03}.xz", chunk)
            add(tar, f"{name}.low", data[0::2])
        for path in wheels:
            add(tar, f"wheels/{path.name}", path.read_bytes())
    parts.describe(commit)
    return len(parts.sizes)


def download_wheels(packages: Sequence[str], target: Path, python: str) -> list[Path]:
    """Download wheels for Linux on x86-64, without dependencies, in the locked versions."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (28, 17)] + ["--platform=manylinux2014_x86_64"]
    options = ["--no-deps", "--only-binary=:all:", "--constraint", str(ROOT / "requirements.lock"), *platforms]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--python-version", python]
    subprocess.run([*command, "-d", str(target), *packages], check=True)
    return sorted(target.iterdir())


def main(argv: Sequence[str] | None = None) -> None:
    """Make the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="New folder.")
    parser.add_argument("--model", default="smollm2-135m", help="A built-in name, a local folder, or a hub id.")
    parser.add_argument("--packages", nargs="*", default=[], help="Packages that the machine lacks.")
    parser.add_argument("--python", default="3.12", help="Python version of the machine.")
    options = parser.parse_args(argv)
    if options.folder.exists():
        parser.error(f"{options.folder} exists. Fix: name a new folder, or remove it.")
    sys.path.insert(0, str(ROOT))
    from rl2f_core.models.store.store import get_model

    model = get_model(options.model, on_message=print).path
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    with tempfile.TemporaryDirectory() as made:
        wheels = download_wheels(options.packages, Path(made), options.python) if options.packages else []
        count = pack(model, wheels, options.folder, git.stdout.strip())
    print(f"{count} parts. On the GPU machine: python tests/gpu/run.py --bundle {options.folder}")


if __name__ == "__main__":
    main()
