"""Turns that are sampled side by side, joining and leaving between any two tokens.

One step reads what is new of every row (the rest of a prompt where one has just joined, else the token drawn last) and
draws the next token of each.  A turn that joins reads only what no row has read before: its own dialogue's row goes on,
and an opening that several dialogues share is read by the first of them, while the others wait for the next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rl2f_core.backends import _torch
from rl2f_core.backends._packed import read_blocks
from rl2f_core.backends._rows import KVRows
from rl2f_core.backends.base import Generation, Prompt, Sampling, Ticket
from rl2f_core.types import TurnStop

WORTH = 16
"""Tokens that another turn must be about to read, for a turn to wait a step in order not to read them as well."""
LOGIT_ROWS = 128
"""Rows whose logits are held at once."""
BLOCK = 256
"""Words of the vocabulary that are summed at once."""


@dataclass(eq=False)
class Pending(Ticket):
    """One turn under way."""

    row: int = -1
    """Where it stands in the cache; −1 until it has a place."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    uniforms: np.ndarray = field(init=False)
    """The chance of every token, from the prompt's own seed."""

    def __post_init__(self) -> None:
        rng = np.random.Generator(np.random.Philox(self.prompt.seed))
        self.uniforms = rng.random(self.sampling.max_new_tokens)


class Decoder:
    """Samples turns with one model.

    Args:
        model: The causal language model.
        device: Where it is.
        banned: Tokens that are never drawn.
        end: The token that ends a turn.
        read_tokens: Tokens of prompts that are read in one pass.
        keeps: Whether a dialogue's keys and values stay for its next turn.
    """

    def __init__(
        self, model: Any, device: torch.device, banned: torch.Tensor, end: int, *, read_tokens: int, keeps: bool
    ) -> None:
        self.model, self.device, self.banned, self.end = model, device, banned, end
        self.read_tokens, self.keeps = read_tokens, keeps
        self.waiting: list[Pending] = []
        """Turns without a place yet, in the order they came."""
        self.read_count = 0
        """Tokens that the model has read so far."""
        self._speakers: dict[str | None, int] = {}
        self._numbers = 0
        self.forget()

    # -- what is kept --------------------------------------------------------------------------------------------
    def forget(self) -> None:
        """Drop what is kept of earlier turns, or all of it with the turns under way."""
        self.kv = KVRows(self.device)
        self.keys: list[str] = []
        """The dialogue that every row belongs to; empty where a row is free."""
        self.live: list[Pending | None] = []
        """The turn under way in every row."""
        self.waiting.clear()

    def forget_speaker(self, adapter: str | None) -> None:
        """What was read with these weights is of no use any more: they are others now."""
        self._speakers.pop(adapter, None)

    def leave(self, keys: Iterable[str]) -> None:
        """These dialogues have ended. Their rows are free, and hold what they hold until they are needed."""
        ended = set(keys)
        self.keys = ["" if key in ended else key for key in self.keys]

    def held(self, key: str) -> tuple[int, ...]:
        """The tokens of a dialogue whose keys and values are kept."""
        if not key or key not in self.keys:
            return ()
        row = self.keys.index(key)
        return tuple(self.kv.tokens[row, : self.kv.read[row]].tolist())

    # -- turns ---------------------------------------------------------------------------------------------------
    @property
    def busy(self) -> bool:
        """Some turn is under way."""
        return bool(self.waiting) or any(turn is not None for turn in self.live)

    @property
    def pending(self) -> list[Pending]:
        """All turns under way."""
        return [*(turn for turn in self.live if turn is not None), *self.waiting]

    def submit(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None) -> list[Pending]:
        """Let turns join at the next step."""
        joining = [Pending(prompt, sampling, adapter) for prompt in prompts]
        self.waiting += joining
        return joining

    def cancel(self, turns: Iterable[Pending]) -> None:
        """Let turns leave before their end; what was read of them is kept."""
        for turn in turns:
            if turn in self.waiting:
                self.waiting.remove(turn)
            if turn.row >= 0 and self.live[turn.row] is turn:
                self._stand_up(turn)

    def speakers(self) -> Counter[str | None]:
        """How many turns of each adapter are under way."""
        return Counter(turn.adapter for turn in self.pending)

    @torch.inference_mode()
    def step(
        self, speaking: set[str | None], reading: Callable[[list[tuple[str | None, int]]], None] | None = None
    ) -> list[Pending]:
        """One pass for the turns of these adapters; those that drew a token, some of which have now ended.

        Args:
            speaking: Whose turns go on.
            reading: Told before the model reads whose tokens come, and how many, one after another.
        """
        self._seat(speaking)
        self._close_up()
        blocks = self._blocks(speaking)
        if reading is not None:
            reading([(turn.adapter, count) for row, count in blocks if (turn := self.live[row]) is not None])
        hidden_BH = read_blocks(self.model, self.kv, blocks)
        self.read_count += sum(count for _, count in blocks)
        ready = [i for i, (row, _) in enumerate(blocks) if self.kv.read[row] == self.kv.known[row]]
        turns = [turn for i in ready if (turn := self.live[blocks[i][0]]) is not None]
        self._draw(turns, hidden_BH[ready] if len(ready) < len(blocks) else hidden_BH)
        return turns

    # -- places --------------------------------------------------------------------------------------------------
    def _number(self, adapter: str | None) -> int:
        """The number under which the cache knows these weights."""
        if adapter not in self._speakers:
            self._numbers += 1
            self._speakers[adapter] = self._numbers
        return self._speakers[adapter]

    def _seat(self, speaking: set[str | None]) -> None:
        """Give a row to every waiting turn that reads nothing which another is about to read."""
        joining = [turn for turn in self.waiting if turn.adapter in speaking]
        if not joining:
            return
        taken = sum(turn is not None or bool(key) for turn, key in zip(self.live, self.keys, strict=True))
        idle = {key for turn, key in zip(self.live, self.keys, strict=True) if key and turn is None}
        own = len(idle & {turn.prompt.key for turn in joining})  # these go on where they stand
        longest = max(len(turn.prompt.token_ids) + turn.sampling.max_new_tokens for turn in joining)
        self.kv.room(taken + len(joining) - own, longest)
        more = self.kv.rows - len(self.live)
        self.live += [None] * more
        self.keys += [""] * more
        seated = {turn for turn in joining if self._sit_down(turn)}
        self.waiting = [turn for turn in self.waiting if turn not in seated]

    def _sit_down(self, turn: Pending) -> bool:
        """Find a row for a turn; False where it had better wait a step."""
        tokens, speaker = turn.prompt.token_ids, self._number(turn.adapter)
        common = np.minimum(self.kv.common(tokens, speaker), len(tokens) - 1)
        ready = np.minimum(common, self.kv.read)
        key = turn.prompt.key
        own = next((r for r, k in enumerate(self.keys) if key and k == key and self.live[r] is None), None)
        best = int(ready.argmax())
        if own is not None and ready[own] == ready[best]:
            best = own
        if int(common.max()) - int(ready[best]) >= WORTH:
            return False
        free = [r for r, k in enumerate(self.keys) if not k and self.live[r] is None]
        row = own if own is not None else best if ready[best] and best in free else free[0]
        self.kv.begin(row, tokens, speaker, best, int(ready[best]))
        self.keys[row], self.live[row], turn.row = key, turn, row
        return True

    def _close_up(self) -> None:
        """Let rows that speak stand together, since attention looks at all rows between them."""
        rows = [row for row, turn in enumerate(self.live) if turn is not None]
        if not rows or 4 * (rows[-1] + 1) <= 5 * len(rows) + 16:
            return
        holes = [row for row in range(len(rows)) if self.live[row] is None]
        for hole, row in zip(holes, reversed(rows), strict=False):
            self.kv.swap(hole, row)
            self.keys[hole], self.keys[row] = self.keys[row], self.keys[hole]
            self.live[hole], self.live[row] = self.live[row], None
            turn = self.live[hole]
            assert turn is not None
            turn.row = hole

    def _blocks(self, speaking: set[str | None]) -> list[tuple[int, int]]:
        """The rows that read in this step, and how many tokens."""
        blocks, left = [], self.read_tokens
        for row, turn in enumerate(self.live):
            if turn is None or turn.adapter not in speaking:
                continue
            unread = int(self.kv.known[row] - self.kv.read[row])
            count = unread if unread == 1 else min(unread, left)
            if count:
                blocks.append((row, count))
                left -= count if unread > 1 else 0
        return blocks

    def _stand_up(self, turn: Pending) -> None:
        """Free the place of a turn, and the row too where nothing goes on from it."""
        row = turn.row
        self.kv.cut(row, int(self.kv.read[row]) if self.keeps else 0)
        self.live[row] = None
        if not self.keeps:
            self.keys[row] = ""

    # -- tokens --------------------------------------------------------------------------------------------------
    def _draw(self, turns: Sequence[Pending], hidden_BH: torch.Tensor) -> None:
        """The next token of every turn."""
        kinds: dict[tuple[float, float], list[int]] = {}
        for i, turn in enumerate(turns):
            kinds.setdefault((turn.sampling.temperature, turn.sampling.top_p), []).append(i)
        for (temperature, top_p), places in kinds.items():
            for start in range(0, len(places), LOGIT_ROWS):
                chunk = places[start : start + LOGIT_ROWS]
                logits_BV = _torch.logits_of(self.model, hidden_BH[chunk])
                logits_BV = logits_BV / temperature if temperature != 1 else logits_BV
                logits_BV.index_fill_(1, self.banned, _torch.NEVER)
                uniform = [turns[i].uniforms[len(turns[i].token_ids)] for i in chunk]
                uniform_B = torch.tensor(uniform, dtype=torch.float64).to(self.device)
                token_B, logp_B = draw_tokens(logits_BV, uniform_B, top_p)
                for i, token, logp in zip(chunk, token_B.tolist(), logp_B.tolist(), strict=True):
                    self._take(turns[i], token, logp)

    def _take(self, turn: Pending, token: int, logp: float) -> None:
        """A turn's next token, with which it may end."""
        turn.token_ids.append(token)
        turn.logprobs.append(logp)
        ended = token == self.end
        if ended or len(turn.token_ids) == turn.sampling.max_new_tokens:
            stop = TurnStop.EOS if ended else TurnStop.LENGTH
            turn.generation = Generation(tuple(turn.token_ids), tuple(turn.logprobs), stop)
            self._stand_up(turn)
        else:
            self.kv.append(turn.row, token)


def draw_tokens(logits_BV: Any, uniform_B: Any, top_p: float = 1.0) -> tuple[Any, Any]:
    """One token a row by inverse transform sampling, and its log-probability under the full distribution, both [B].

    A row's draw depends on its own logits and its own uniform number alone.  The cumulative distribution is
    that of blocks of the vocabulary first, then that within the block where the number falls, both in float64.
    """
    p_BV = full_BV = logits_BV.softmax(1)
    if top_p < 1:
        sorted_BV, order_BV = p_BV.sort(1, descending=True)
        kept = sorted_BV.cumsum(1) - sorted_BV < top_p
        p_BV = torch.zeros_like(p_BV).scatter(1, order_BV, sorted_BV * kept)
    rows, words = p_BV.shape
    whole_BV = torch.nn.functional.pad(p_BV, (0, -words % BLOCK)) if words % BLOCK else p_BV
    p_BNK = whole_BV.view(rows, -1, BLOCK)
    mass_BN = p_BNK.sum(2).double()
    blocks_BN = mass_BN.cumsum(1)
    target_B1 = uniform_B.to(blocks_BN.dtype).unsqueeze(1) * blocks_BN[:, -1:]
    block_B1 = _first_above(blocks_BN, target_B1)
    mass_B1 = mass_BN.gather(1, block_B1)
    share_B1 = (target_B1 - blocks_BN.gather(1, block_B1) + mass_B1) / mass_B1
    inner_BK = p_BNK[torch.arange(rows, device=p_BNK.device), block_B1.squeeze(1)].double().cumsum(1)
    place_B1 = _first_above(inner_BK, share_B1 * inner_BK[:, -1:])
    token_B = (block_B1 * BLOCK + place_B1).squeeze(1)
    return token_B, full_BV.gather(1, token_B[:, None]).squeeze(1).log()


def _first_above(cdf_BN: torch.Tensor, target_B1: torch.Tensor) -> torch.Tensor:
    """Where a cumulative sum first exceeds the target, or reaches its end: never at a part without mass."""
    return torch.minimum(
        torch.searchsorted(cdf_BN, target_B1, right=True), torch.searchsorted(cdf_BN, cdf_BN[:, -1:].contiguous())
    )
