"""Records the operations of a function on fixed tensors and replays them, as a CUDA graph does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "unique", "masked_select", "lift_fresh", "item")
"""Operations that wait for the device, or copy a value of the host to it."""


class HostWait(RuntimeError):
    """An operation during a capture waits for the device."""


class Recorder(TorchDispatchMode):
    """Records operations; raises `HostWait` for those that a capture does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        """Function, positional and named arguments, and result; tensors keep their address."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name in WAITING:
            raise HostWait(name)
        if name in ("index", "index_put", "index_put_"):
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    raise HostWait(f"{name} by a mask")
        with self:  # in inference mode, composite operations arrive here
            out = func.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
        out = func(*args, **kwargs)
        is_view = name == "_unsafe_view" or any(value.alias_info is not None for value in func._schema.returns)
        if func._schema.is_mutable or not is_view:
            fixed = tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, (args, kwargs, out))
            self.operations.append((func, *fixed))
        return out


def replay(operations: list[tuple[Any, Any, Any, Any]]) -> None:
    """Repeat recorded operations on the tensors of the recording."""
    for func, args, kwargs, out in operations:
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            continue
        if isinstance(result, torch.Tensor):
            out.copy_(result)
        else:
            for old, new in zip(tree_flatten(out)[0], tree_flatten(result)[0], strict=True):
                old.copy_(new)


class Captures:
    """Replaces `static_decoder.capture` on a CPU; counts captures and replays."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, run: Callable[[], object], pool: object, stream: object) -> Callable[[], object]:
        run()
        recorder = Recorder()
        with recorder:
            run()
        self.captured += 1

        def play() -> None:
            self.replayed += 1
            replay(recorder.operations)

        return play
