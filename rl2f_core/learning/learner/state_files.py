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
    def copy(
        cls, tensors: Mapping[str, torch.Tensor], device: torch.device, dtype: torch.dtype, reused: TensorFile | None
    ) -> TensorFile:
        """Copy tensors, into the memory of a `reused` file that is no longer needed if it has the same shapes.

        On a GPU this does not wait for the copy; kernels of the same stream that are launched later run after it.
        """
        shapes = {name: tuple(tensors[name].shape) for name in sorted(tensors)}
        sizes, on_gpu = [math.prod(shape) for shape in shapes.values()], device.type == "cuda"
        fits = reused is not None and reused.shapes == shapes and reused.buffer.dtype == dtype
        buffer = reused.buffer if fits and reused else torch.empty(sum(sizes), dtype=dtype, pin_memory=on_gpu)
        for name, target in zip(shapes, buffer.split(sizes), strict=True):
            target.copy_(tensors[name].detach().reshape(-1), non_blocking=on_gpu)
        copied = torch.cuda.Event() if on_gpu and sizes else None
        if copied is not None:
            copied.record()
        return cls(shapes, buffer, copied)

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
