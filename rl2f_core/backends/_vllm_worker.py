"""The process that vLLM lives in: `python -m rl2f_core.backends._vllm_worker SOCKET`, started by `_vllm_process`.

One JSON object a line, both ways.  In come `start`, `submit`, `cancel`, and calls (`load`, `drop`, `forget`, `sleep`,
`wake`), each answered with `done` or `failed`; out come `ready`, `finished`, `refused`, `alive` and `broken`, too.
Requests join those under way at the next step of the engine, and each answer leaves when its last token is drawn.

When the other end of the socket closes, whatever the reason, this process and all that vLLM started end at once.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

ALIVE_EVERY = 1.0
"""Seconds of work after which a step says that it was made."""


class Line:
    """The socket: lines in, by a thread of their own, and lines out."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self.inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._sent = time.monotonic()
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()

    def _listen(self) -> None:
        try:
            with self.socket.makefile("rb") as lines:
                for line in lines:
                    self.inbox.put(json.loads(line))
        finally:
            _end_all()

    def send(self, **message: Any) -> None:
        """Send one message. A listener that is gone ends this process."""
        self._sent = time.monotonic()
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            _end_all()

    def alive(self) -> None:
        """Say that work goes on, where nothing was said for a while."""
        if time.monotonic() - self._sent > ALIVE_EVERY:
            self.send(say="alive")


def _watch(owner: int) -> None:
    """End with the process that started this one, where a fork of it holds the other end of the socket open."""
    while os.getppid() == owner:
        time.sleep(ALIVE_EVERY)
    _end_all()


def _end_all() -> None:
    """End this process and its group, which it leads: vLLM's own workers are in it."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


class Host:
    """Holds the engine and does what it is told."""

    def __init__(self, line: Line, arguments: dict[str, Any]) -> None:
        from vllm import EngineArgs, LLMEngine
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext

        self.line = line
        # as for vLLM's own offline class, whose batches are larger than the default
        self.engine: Any = LLMEngine.from_engine_args(EngineArgs(**arguments), usage_context=UsageContext.LLM_CLASS)
        self.waiting: set[str] = set()
        config = self.engine.vllm_config
        line.send(say="ready", context_limit=config.model_config.max_model_len, device=current_platform.device_type)

    def serve(self) -> None:
        """Work until the other end is gone."""
        while True:
            while not self.waiting or not self.line.inbox.empty():
                self.do(self.line.inbox.get())
            for output in self.engine.step():
                self.answer(output)
            self.line.alive()

    def do(self, message: dict[str, Any]) -> None:
        """Carry one message out."""
        op = message["op"]
        if op == "submit":
            self.submit(message)
        elif op == "cancel":
            held = [name for name in message["ids"] if name in self.waiting]
            self.engine.abort_request(held)
            self.waiting.difference_update(held)
        else:
            try:
                self.call(op, message)
            except Exception as error:
                self.line.send(say="failed", what=op, text=f"{type(error).__name__}: {error}")
            else:
                self.line.send(say="done", what=op)

    def call(self, op: str, message: dict[str, Any]) -> None:
        """Carry out what is answered once it is done. Raises what vLLM raises."""
        if op == "load":
            self.engine.add_lora(lora_request(message["adapter"]))
        elif op == "drop":
            self.engine.remove_lora(message["adapter"]["number"])
        elif op == "forget":
            self.engine.reset_prefix_cache()
        elif op == "sleep":
            self.engine.sleep(1)
        elif op == "wake":
            self.engine.wake_up()
        else:
            raise ValueError(f"unknown operation {op!r}")

    def submit(self, message: dict[str, Any]) -> None:
        """Add a request; what vLLM does not take is sent back."""
        name, adapter = message["id"], message["adapter"]
        try:
            self.engine.add_request(
                name,
                {"prompt_token_ids": message["tokens"]},
                sampling_params(message["params"]),
                lora_request=None if adapter is None else lora_request(adapter),
            )
        except Exception as error:
            self.line.send(say="refused", id=name, text=f"{type(error).__name__}: {error}")
        else:
            self.waiting.add(name)

    def answer(self, output: Any) -> None:
        """Send what a request ended with."""
        if not output.finished or output.request_id not in self.waiting:
            return
        self.waiting.discard(output.request_id)
        (drawn,) = output.outputs
        tokens, found = list(drawn.token_ids), drawn.logprobs
        if output.prompt_logprobs is not None:
            tokens, found = list(output.prompt_token_ids), output.prompt_logprobs
        self.line.send(say="finished", id=output.request_id, tokens=tokens, logprobs=chosen(found))


def sampling_params(params: dict[str, Any]) -> Any:
    """vLLM's own object of `_vllm_wire`'s parameters: nothing is turned into text, and all comes at the end."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    bias = {int(token): value for token, value in params.get("logit_bias", {}).items()}
    return SamplingParams(
        **{key: value for key, value in params.items() if key != "logit_bias"},
        logit_bias=bias or None,
        detokenize=False,
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def lora_request(adapter: dict[str, Any]) -> Any:
    """vLLM's name for an adapter."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(adapter["name"], adapter["number"], adapter["folder"])


def chosen(found: Any) -> list[float | None]:
    """The log-probability of each token itself, out of vLLM's flat lists; None where there is none."""
    places = zip(found.start_indices, found.end_indices, strict=True)
    return [found.logprobs[start] if start < end else None for start, end in places]


def main(arguments: list[str]) -> None:
    """Serve the socket whose number is the argument."""
    line = Line(int(arguments[0]))
    try:
        host = Host(line, line.inbox.get()["arguments"])
        host.serve()
    except Exception as error:
        traceback.print_exc()
        line.send(say="broken", text=f"{type(error).__name__}: {error}")
        sys.stderr.flush()
        time.sleep(0.2)  # vLLM's own processes may have more to say in the log
    finally:
        _end_all()


if __name__ == "__main__":
    main(sys.argv[1:])
