"""A copy of trained tensors in the host's memory, which another thread can write while the training continues."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True)
class TensorFile:
    """Tensors of one dtype in one buffer, as a safetensors file stores them."""

    shapes: dict[str, tuple[int, ...]]
    buffer: torch.Tensor
    """The values of all tensors, in the order of `shapes`, in the host's memory."""
    copied: torch.cuda.Event | None
    """Set once the GPU has copied the values."""

    @classmethod
    def copy(cls, tensors: Mapping[str, torch.Tensor], device: torch.device, dtype: torch.dtype) -> TensorFile:
        """Copy tensors; on a GPU, later kernels of the same stream run after the copy, which this does not wait for."""
        names = sorted(tensors)
        parts = [tensors[name].detach().to(device, dtype).reshape(-1) for name in names]
        flat, copied = torch.cat(parts) if parts else torch.empty(0, dtype=dtype), None
        buffer = flat
        if flat.device.type == "cuda":
            buffer = torch.empty(flat.shape, dtype=dtype, pin_memory=True).copy_(flat, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        return cls({name: tuple(tensors[name].shape) for name in names}, buffer.cpu(), copied)

    def write(self, path: Path) -> None:
        """Write the file, byte for byte as `safetensors.torch.save_file` does."""
        if self.copied is not None:
            self.copied.synchronize()
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end, width = 0, self.buffer.element_size()
        for name, shape in self.shapes.items():
            start, end = end, end + math.prod(shape) * width
            header[name] = {"dtype": _DTYPES[self.buffer.dtype], "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.write(self.buffer.view(torch.uint8).numpy().data)


@dataclass(frozen=True)
class StateFiles:
    """Files of a training state or checkpoint by name; empty in all but the main process."""

    tensors: dict[str, TensorFile]
    texts: dict[str, str]

    def write(self, folder: Path) -> None:
        """Write the files to a folder, which is created if it is missing."""
        if self.tensors:
            folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.texts.items():
            (folder / name).write_text(text)
        for name, tensors in self.tensors.items():
            tensors.write(folder / name)
