"""A package named `vllm` with a stand-in for its server, for machines without the real one.

It computes nothing: the tokens of a response show which adapter generated them and with which seed, and special tokens
of a prompt make the server fail in every way that vLLM can. The process and the HTTP client around it are real.
"""

from __future__ import annotations

from pathlib import Path

REFUSED, BROKEN, KILLED, SILENT, BUSY = 9, 8, 7, 6, 4
"""Last tokens of a prompt: refused; the engine fails; the process dies; no response and no progress; neither response
nor stall: only the metrics show progress."""

_SERVER = """
import argparse, json, os, select, signal, socket, socketserver, sys, threading, time
from http.server import BaseHTTPRequestHandler

class Server:
    def __init__(self, options):
        self.options, self.loras, self.asleep, self.dead = options, [], False, False
        self.aborted, self.resets, self.steps = [], 0, 0

    def reply(self, path, body, connection):
        if path == "/health":
            return (503 if self.dead else 200), {}
        if path == "/metrics":
            return 200, f"vllm:iteration_tokens_total_count {self.steps}"
        if path == "/v1/models":
            return 200, {"data": [{"id": self.options.model, "max_model_len": self.options.max_model_len}]}
        if path == "/standin":
            state = {"asleep": self.asleep, "aborted": self.aborted, "resets": self.resets}
            return 200, {**state, "arguments": sys.argv[1:]}
        if path == "/v1/load_lora_adapter":
            name, folder = body["lora_name"], body["lora_path"]
            if not os.path.exists(folder + "/adapter_config.json"):
                return 404, {"error": {"message": "No adapter found for " + folder}}
            if json.load(open(folder + "/adapter_config.json"))["r"] > self.options.max_lora_rank:
                return 500, {"error": {"message": "rank too high"}}
            self.loras.append(name)
        elif path == "/v1/unload_lora_adapter":
            self.loras[self.loras.index(body["lora_name"])] = None
        elif path == "/reset_prefix_cache":
            self.resets += 1
        elif path == "/sleep?level=1":
            self.asleep = True
        elif path == "/wake_up":
            self.asleep = False
        elif path == "/v1/completions":
            return self.complete(body, connection)
        else:
            return 404, {"detail": "Not Found"}
        return 200, {}

    def complete(self, body, connection):
        tokens, name = body["prompt"], body["model"]
        if name not in [self.options.model, *self.loras]:
            return 404, {"error": {"message": f"The model {name} does not exist"}}
        if tokens[-1] == 9 or self.asleep:
            return 400, {"error": {"message": "this prompt is refused"}}
        if tokens[-1] == 8:
            self.dead = True
            print("RuntimeError: a kernel failed", file=sys.stderr, flush=True)
            return 500, {"error": {"message": "EngineCore encountered an issue"}}
        if tokens[-1] == 7:
            print("last words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        while tokens[-1] == 6 or body["max_tokens"] > 10**6 or (tokens[-1] == 4 and self.steps < 15):
            time.sleep(0.1)
            self.steps += tokens[-1] == 4
            if select.select([connection], [], [], 0)[0] and not connection.recv(1, socket.MSG_PEEK):
                self.aborted.append(tokens)
                return 499, {}
        if "prompt_logprobs" in body:
            logprobs = [None, *({str(t): {"logprob": -float(t)}} for t in tokens[1:])]
            return 200, {"choices": [{"token_ids": [5], "logprobs": None, "prompt_logprobs": logprobs}]}
        number = self.loras.index(name) + 1 if name in self.loras else 0
        sampled = [20 + number, 40 + body.get("seed", 0) % 7, *body.get("stop_token_ids", [0])][: body["max_tokens"]]
        logprobs = [-0.25 * (1 + i) for i in range(len(sampled))]
        if "allowed_token_ids" in body:
            sampled, logprobs = body["allowed_token_ids"], [0.0]
        return 200, {"choices": [{"token_ids": sampled, "logprobs": {"token_logprobs": logprobs}}]}

class UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--uds")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-lora-rank", type=int, default=0)
    options, _ = parser.parse_known_args()
    if options.model.endswith("missing"):
        print("there is no such model", file=sys.stderr)
        raise ValueError("cannot start")
    if options.model.endswith("slow"):
        time.sleep(60)
    server = Server(options)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def do_GET(self):
            self.do_POST()

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
            status, content = server.reply(self.path, body, self.connection)
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    UnixServer(options.uds, Handler).serve_forever(poll_interval=0.02)
"""


def write(folder: Path) -> Path:
    """Write the package below a folder, to be put on PYTHONPATH; returns the folder."""
    module = folder / "vllm" / "entrypoints" / "launchers" / "api_server"
    module.mkdir(parents=True, exist_ok=True)
    (module / "entry.py").write_text(_SERVER)
    for package in (module, *module.parents):
        (package / "__init__.py").touch()
        if package.name == "vllm":
            break
    return folder
