"""Make the folder that `run.py` needs on a machine without a network: `python tests/gpu/prepare.py FOLDER`.

    weights/       the model's files; files above 60 MiB as pieces, NAME.000, NAME.001, …
    weights.json   size, SHA-256 and pieces of every file
    wheels/        wheels of the packages that the machine lacks (`--packages`)

A transfer may limit the size of a file; every piece is below 64 MiB. Larger wheels are an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PIECE_BYTES = 60 * 2**20
MAX_BYTES = 64 * 2**20
ROOT = Path(__file__).resolve().parents[2]


def split_weights(model: Path, target: Path, piece_bytes: int = PIECE_BYTES) -> None:
    """Write the files of a model folder to `target/weights`, in pieces, and their list to `target/weights.json`."""
    folder = target / "weights"
    folder.mkdir(parents=True)
    listed = {}
    for path in sorted(path for path in model.iterdir() if path.is_file()):
        digest, names = hashlib.sha256(), []
        with open(path, "rb") as file:
            while piece := file.read(piece_bytes):
                digest.update(piece)
                names.append(f"{path.name}.{len(names):03}" if path.stat().st_size > piece_bytes else path.name)
                (folder / names[-1]).write_bytes(piece)
        listed[path.name] = {"bytes": path.stat().st_size, "sha256": digest.hexdigest(), "pieces": names}
    (target / "weights.json").write_text(json.dumps(listed, indent=1), encoding="utf-8")


def download_wheels(packages: Sequence[str], target: Path, python: str) -> None:
    """Download wheels for Linux on x86-64, without dependencies, in the locked versions."""
    target.mkdir(parents=True)
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (28, 17)] + ["--platform=manylinux2014_x86_64"]
    options = ["--no-deps", "--only-binary=:all:", "--constraint", str(ROOT / "requirements.lock"), *platforms]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        *options,
        "--python-version",
        python,
        "-d",
        str(target),
    ]
    subprocess.run([*command, *packages], check=True)
    large = [path.name for path in target.iterdir() if path.stat().st_size >= MAX_BYTES]
    if large:
        raise SystemExit(f"Wheels of 64 MiB and more: {', '.join(large)}. Install these packages on the machine.")


def main(argv: Sequence[str] | None = None) -> None:
    """Make the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="New folder.")
    parser.add_argument("--model", default="smollm2-135m", help="A built-in name, a local folder, or a hub id.")
    parser.add_argument("--packages", nargs="*", default=[], help="Packages that the machine lacks.")
    parser.add_argument("--python", default="3.11", help="Python version of the machine.")
    options = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT))
    from rl2f_core.models.store.store import get_model

    split_weights(get_model(options.model, on_message=print).path, options.folder)
    if options.packages:
        download_wheels(options.packages, options.folder / "wheels", options.python)
    print(f"python tests/gpu/run.py --bundle {options.folder}")


if __name__ == "__main__":
    main()
