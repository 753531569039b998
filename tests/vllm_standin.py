"""A package named `vllm` with as much of its API as the engine's process uses, for machines without the real one.

Nothing is computed: a request's tokens say which adapter answered and with which seed, and special tokens of a prompt
make it fail in every way an engine can. The process, its protocol and its watchers around it are the real ones.
"""

from __future__ import annotations

from pathlib import Path

REFUSED, BROKEN, KILLED, SILENT = 9, 8, 7, 6
"""Last tokens of a prompt: the request is refused; the step raises; the process dies; the step takes for ever."""

_ENGINE = """
import json, os, signal, sys, time, types

class EngineArgs:
    def __init__(self, **arguments):
        self.arguments = arguments

class SamplingParams:
    def __init__(self, **params):
        self.__dict__ |= params

class Flat:
    def __init__(self, logprobs, first=0):
        self.start_indices = [max(0, i - first) for i in range(len(logprobs) + first)]
        self.end_indices = [0 if i < first else i - first + 1 for i in range(len(logprobs) + first)]
        self.logprobs = logprobs

class LLMEngine:
    @classmethod
    def from_engine_args(cls, args, usage_context):
        if args.arguments.get("model", "").endswith("missing"):
            print("there is no such model", file=sys.stderr)
            raise ValueError("cannot start")
        return cls(args.arguments)

    def __init__(self, arguments):
        self.arguments, self.requests, self.loras, self.asleep = arguments, {}, set(), False
        model = types.SimpleNamespace(max_model_len=arguments["max_model_len"])
        self.vllm_config = types.SimpleNamespace(model_config=model)

    def add_lora(self, lora):
        if not os.path.exists(lora.path + "/adapter_config.json"):
            raise ValueError("no adapter in " + lora.path)
        if json.load(open(lora.path + "/adapter_config.json"))["r"] > self.arguments.get("max_lora_rank", 0):
            raise ValueError("rank too high")
        self.loras.add(lora.number)

    def remove_lora(self, number):
        self.loras.remove(number)

    def reset_prefix_cache(self):
        return True

    def sleep(self, level):
        self.asleep = True

    def wake_up(self):
        self.asleep = False

    def abort_request(self, names):
        for name in names:
            self.requests.pop(name)

    def add_request(self, name, prompt, params, lora_request=None):
        tokens = prompt["prompt_token_ids"]
        if tokens[-1] == 9:
            raise ValueError("this prompt is not taken")
        assert not self.asleep and (lora_request is None or lora_request.number in self.loras)
        assert params.detokenize is False and params.output_kind == "final"
        self.requests[name] = [tokens, params, lora_request, []]

    def step(self):
        out = []
        for name, (tokens, params, lora, drawn) in list(self.requests.items()):
            if tokens[-1] == 8:
                raise RuntimeError("a kernel failed")
            if tokens[-1] == 7:
                print("last words", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if tokens[-1] == 6:
                time.sleep(60)
            drawn.append(20 + (lora.number if lora else 0) if not drawn else 40 + (getattr(params, "seed", 0) or 0) % 7)
            ended = len(drawn) == 3 and getattr(params, "stop_token_ids", None)
            if ended:
                drawn[-1] = params.stop_token_ids[0]
            if not ended and len(drawn) < params.max_tokens:
                continue
            del self.requests[name]
            scored = getattr(params, "prompt_logprobs", None) is not None
            found = Flat([-0.25 * (1 + i) for i in range(len(drawn))])
            of_prompt = Flat([-float(t) for t in tokens[1:]], 1) if scored else None
            output = types.SimpleNamespace(token_ids=drawn, logprobs=found)
            out.append(types.SimpleNamespace(request_id=name, finished=True, outputs=[output],
                                             prompt_logprobs=of_prompt, prompt_token_ids=tokens))
        return out
"""
_FILES = {
    "__init__.py": _ENGINE,
    "platforms.py": "import types\ncurrent_platform = types.SimpleNamespace(device_type='cpu')\n",
    "sampling_params.py": "import types\nRequestOutputKind = types.SimpleNamespace(FINAL_ONLY='final')\n",
    "usage/__init__.py": "",
    "usage/usage_lib.py": "import types\nUsageContext = types.SimpleNamespace(LLM_CLASS='offline')\n",
    "lora/__init__.py": "",
    "lora/request.py": "class LoRARequest:\n    def __init__(self, name, number, path):\n"
    "        self.name, self.number, self.path = name, number, path\n",
}


def write(folder: Path) -> Path:
    """Write the package below a folder, which then belongs on PYTHONPATH; returns the folder."""
    for name, text in _FILES.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
