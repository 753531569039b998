"""Decode steps over static shapes: row j of fixed tensors is slot j, and CUDA graphs replay the operations.

A step computes one token of some slots. Rows without a sequence compute too; they write behind the capacity of their
slot. The number of rows is rounded up to a bucket, and so is the number of positions without a variable-length kernel.
Each bucket is captured at its first use; graphs share one memory pool and are dropped when a tensor moves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from rl2f_core.models.backends.hf.batched_lora import BatchedLora
from rl2f_core.models.backends.hf.kv_cache import KVCache
from rl2f_core.models.backends.hf.packed_forward import (
    AttentionBatch,
    PackedBatch,
    VarlenBatch,
    find_varlen_kernel,
    run_decoder,
)
from rl2f_core.models.backends.hf.token_sampling import sample_rows
from rl2f_core.models.modeling import logprobs
from rl2f_core.models.modeling.attention import CausalLM

MIN_ROWS, MAX_ROWS = 8, 256
"""Smallest bucket of rows, and the largest power of two; larger buckets are multiples of it."""
MIN_POSITIONS = 256
"""Smallest bucket of positions; the others are powers of two."""
LOGITS_CHUNK = 128
"""Rows whose logits are in memory at once."""
COLUMNS = 6
"""Inputs of a row: token, position, position to write, uniform number, temperature, index of the adapter."""
HOST_ROPE_TYPES = ("dynamic", "longrope")
"""RoPE types whose frequencies depend on a comparison on the host."""


def row_bucket(rows: int) -> int:
    """Return the number of rows of a step for at least `rows` slots."""
    if rows > MAX_ROWS:
        return rows + -rows % MAX_ROWS
    return max(MIN_ROWS, 1 << (rows - 1).bit_length())


def unsupported_by_static_shapes(model: CausalLM) -> str:
    """Return why steps over static shapes cannot compute a model; empty if they can."""
    parameters = getattr(model.get_decoder().config, "rope_parameters", None) or {}
    layers = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    types = [str(layer.get("rope_type", "")) for layer in layers]
    return next((f"RoPE type {name}" for name in types if name in HOST_ROPE_TYPES), "")


def capture(run: Callable[[], object], pool: Any, stream: Any) -> Callable[[], object]:
    """Capture the operations of `run`, which may repeat, as a CUDA graph; return its replay."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # loads kernels and allocates workspaces
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        run()
    return graph.replay


class StaticDecoder:
    """Computes and samples one token per row; with `captures` as CUDA graphs.

    `banned` tokens are never sampled. The KV cache must be token-major.
    """

    def __init__(self, model: CausalLM, device: torch.device, banned: torch.Tensor, *, captures: bool) -> None:
        self.model, self.device, self.banned, self.captures = model, device, banned, captures
        self.falls_back = captures
        """Whether packed steps replace this decoder after an error."""
        config = model.get_decoder().config
        self.kernel = find_varlen_kernel(device, model.dtype, config)
        """Variable-length attention; None if the scores of a bucket of positions are masked."""
        self._hidden_size = int(config.hidden_size)
        self.release()

    def release(self) -> None:
        """Drop all graphs and tensors."""
        self._graphs: dict[tuple[int, int, int], Callable[[], object]] = {}
        """Per number of rows, number of positions and version of the batched adapters (−1: none)."""
        self._kv: KVCache | None = None
        self._shape = (0, 0)
        self._stream: tuple[Any, Any] = (None, None)
        """Memory pool of the graphs, and the stream that captures them."""

    def _allocate(self, kv: KVCache) -> None:
        """Allocate tensors for the cache's slots, and drop the graphs of moved tensors."""
        if self._kv is kv and self._shape == (kv.num_slots, kv.capacity):
            return
        self.release()
        self._kv, self._shape, slots, to = kv, (kv.num_slots, kv.capacity), kv.num_slots, self.device
        is_cuda = to.type == "cuda"
        if is_cuda:
            self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self._host = torch.zeros(COLUMNS * slots, dtype=torch.float64, pin_memory=is_cuda)
        self._input = torch.zeros(COLUMNS * slots, dtype=torch.float64, device=to)
        self._output = torch.zeros(slots, 2, dtype=torch.float64, device=to)
        """Token and logprob of each row."""
        self._hidden = torch.zeros(slots, self._hidden_size, dtype=self.model.dtype, device=to)
        self._row = torch.arange(slots + 1, device=to)
        self._cu_seq_q = self._row.int()
        self._cu_seq_k = self._cu_seq_q * (kv.capacity + 1)

    def step(
        self, kv: KVCache, slots: np.ndarray, sampling: np.ndarray, lora: BatchedLora | None
    ) -> tuple[list[int], list[float], torch.Tensor]:
        """Compute the next token of these slots, and update `kv.num_computed`.

        `sampling` has the uniform number, the temperature (0: greedy) and the adapter's index of each slot, [3, B].
        Returns the sampled token, its logprob and the hidden state of each row; those of other slots are undefined.
        """
        self._allocate(kv)
        rows, position = min(row_bucket(int(slots.max()) + 1), kv.num_slots), kv.num_computed[slots]
        host, count = self._host[: COLUMNS * rows], COLUMNS * rows
        values = host.numpy().reshape(COLUMNS, rows)
        values[:] = np.array([0, 0, kv.capacity, 0, 1, -1])[:, None]
        values[:3, slots] = kv.tokens[slots, position], position, position
        values[3:, slots] = sampling
        self._input[:count].copy_(host, non_blocking=True)
        self._graph(rows, int(position.max()) + 1, lora)()
        output = self._output[:rows].tolist()
        kv.num_computed[slots] += 1
        return [int(token) for token, _ in output], [logp for _, logp in output], self._hidden[:rows]

    def _graph(self, rows: int, length: int, lora: BatchedLora | None) -> Callable[[], object]:
        """Return the step of this size, captured at first use."""
        assert self._kv is not None
        positions, version = self._kv.capacity + 1, -1 if lora is None else lora.version
        if self.kernel is None:
            positions = min(positions, max(MIN_POSITIONS, 1 << (length - 1).bit_length()))
        key = rows, positions, version
        if key not in self._graphs:
            if lora is not None:  # stacks of earlier versions have moved
                self._graphs = {other: graph for other, graph in self._graphs.items() if other[2] in (-1, version)}
            run = partial(self._run, self._kv, rows, positions, lora)
            self._graphs[key] = capture(run, *self._stream) if self.captures else run
        return self._graphs[key]

    def _run(self, kv: KVCache, rows: int, positions: int, lora: BatchedLora | None) -> None:
        """Compute `_output` and `_hidden` from `_input`, without waiting for the device."""
        input_CJ = self._input[: COLUMNS * rows].view(COLUMNS, rows)
        token_J, position_J, write_J = input_CJ[:3].long().unbind()
        if lora is not None:
            lora.use(input_CJ[5])
        packed = PackedBatch(kv, self._row[:rows], write_J, [])
        if self.kernel is None:
            packed.batches = [AttentionBatch(slice(rows), None, None, None, position_J[:, None], positions)]
        else:
            cu_seq_q, cu_seq_k = self._cu_seq_q[: rows + 1], self._cu_seq_k[: rows + 1]
            packed.varlen = VarlenBatch(self.kernel, cu_seq_q, cu_seq_k, (position_J + 1).int(), 1)
        self._hidden[:rows].copy_(run_decoder(self.model, token_J, position_J, packed))
        for start in range(0, rows, LOGITS_CHUNK):
            chunk = slice(start, min(start + LOGITS_CHUNK, rows))
            logits_BV = logprobs.compute_logits(self.model, self._hidden[chunk])
            token_B, logp_B = sample_rows(logits_BV, input_CJ[3, chunk], input_CJ[4, chunk].float(), self.banned)
            self._output[chunk].copy_(torch.stack([token_B.double(), logp_B.double()], 1))
