"""Write the folder `logs` with TRL, verl, verifiers and Inspect; each part runs in an environment with its package.

    .venv/bin/python tests/jobs/imports/write_logs.py trl            # TRL 1.16, of this project
    PACKAGE/bin/python tests/jobs/imports/write_logs.py verl         # verl 0.9.1, installed with --no-deps
    PACKAGE/bin/python tests/jobs/imports/write_logs.py verifiers    # verifiers 0.4.0, of `make setup-verifiers`
    PACKAGE/bin/python tests/jobs/imports/write_logs.py inspect      # inspect-ai 0.3.285

All write sums, some with an unknown reward or an error. The writers are the packages' own; only verl's trainer, which
needs GPUs, is not run: its `_dump_generations` is called with texts as its tokenizer decodes them.
"""

# mypy: ignore-errors
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LOGS = Path(__file__).with_name("logs")
SYSTEM = "Write only the sum."
SUMS = {"2 + 3?": "5", "4 + 4?": "8"}


# -- TRL -----------------------------------------------------------------------------------------------------------
def even_reward(completions, **_):
    """Return 1 for an even number of characters; None, which TRL logs as NaN, for every fourth completion."""
    sizes = [len(completion[0]["content"]) for completion in completions]
    return [None if k % 4 == 3 else float(size % 2 == 0) for k, size in enumerate(sizes)]


def brief_reward(completions, log_extra=None, solution=(), **_):
    """Return a penalty for characters, none for every fourth completion, and log two columns that are no rewards."""
    if log_extra is not None:
        log_extra("solution", list(solution))
        log_extra("question", [f"sum {k}" for k in range(len(completions))])
    sizes = [len(completion[0]["content"]) for completion in completions]
    return [None if k % 4 == 3 else -size / 100 for k, size in enumerate(sizes)]


def write_trl(out: Path) -> None:
    """Train the tiny model for two steps with GRPO; each step logs its completions."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from rl2f_core.models.store.store import get_model

    folder = str(get_model("tiny-random").path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [[{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}] for text in SUMS]
    rows = Dataset.from_dict({"prompt": prompts, "solution": [int(answer) for answer in SUMS.values()]})
    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            scratch, max_steps=2, num_generations=4, per_device_train_batch_size=8, max_completion_length=6,
            log_completions=True, logging_steps=1, report_to="none", use_cpu=True, save_strategy="no", seed=3,
            loss_type="grpo", reward_weights=[1.0, 1.0],
        )  # fmt: skip
        trainer = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(folder), [even_reward, brief_reward], config, rows,
            processing_class=tokenizer,
        )  # fmt: skip
        trainer.train()
        shutil.copytree(Path(scratch) / "completions", out / "trl", dirs_exist_ok=True)


# -- verl ----------------------------------------------------------------------------------------------------------
DUMP = ("_init_dump_executor", "_dump_generations", "_write_generations", "_shutdown_dump_executor")


def write_verl(out: Path) -> None:
    """Call the dump of verl's trainer for two steps of training and a validation.

    Only these methods of the class are compiled, because its module imports Ray and CUDA packages.
    """
    import ast
    from concurrent.futures import ThreadPoolExecutor
    from importlib.metadata import distribution

    import numpy as np

    file = distribution("verl").locate_file("verl/trainer/ppo/ray_trainer.py")
    tree = ast.parse(Path(str(file)).read_text())
    (trainer_class,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "RayPPOTrainer")
    trainer_class.body = [n for n in trainer_class.body if getattr(n, "name", "") in DUMP]
    trainer_class.bases, trainer_class.decorator_list = [], []
    names = {"json": json, "os": os, "ThreadPoolExecutor": ThreadPoolExecutor}
    exec(compile(ast.Module([trainer_class], []), str(file), "exec"), names)
    trainer = names["RayPPOTrainer"]()
    trainer._init_dump_executor()
    inputs = [f"system\n{SYSTEM}\nuser\n{text}\nassistant\n" for text in SUMS for _ in range(2)]
    golds = [answer for answer in SUMS.values() for _ in range(2)]
    outputs = ["5", "6", "8", "I do not know."]
    scores, correct = [1.0, -1.0, 1.0, float("nan")], [np.bool_(True), np.bool_(False), np.bool_(True), None]
    for step in (9, 10):
        trainer.global_steps = step
        trainer._dump_generations(inputs, outputs, golds, scores, {"acc": correct}, str(out / "verl" / "rollout"))
    extra = {"reward": scores, "acc": correct}  # as `_validate` passes them
    trainer._dump_generations(inputs, outputs, golds, scores, extra, str(out / "verl" / "validation"))
    trainer._shutdown_dump_executor()


# -- verifiers -----------------------------------------------------------------------------------------------------
TASKSET = """
import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.dialects.chat import message_to_wire

class SumsData(vf.TaskData):
    answer: str

class SumsTask(vf.Task[SumsData]):
    @vf.reward(weight=0.9)
    async def exact(self, task, trace) -> float:
        return float(trace.last_reply == task.answer)

    @vf.reward(weight=0.1)
    async def brief(self, trace) -> float:
        return float("nan") if "?" in trace.last_reply else float(len(trace.last_reply) < 4)

class Sums(vf.Taskset[SumsTask, vf.TasksetConfig]):
    def load(self):
        for k, (text, answer) in enumerate(%r.items()):
            data = SumsData(id=str(k), system_prompt=%r, prompt=text, answer=answer)
            yield SumsTask(data, self.config.task)

class SumsConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())

class SumsEnvironment(vf.Env[SumsConfig]):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            if not (await interaction.turn()).terminated:
                await interaction.turn("Check it.")

class SumsHarness(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        messages = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or ())
        messages = [vf.SystemMessage(content=system), *messages] if system else messages
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=[message_to_wire(m) for m in messages])
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

__all__ = ["SumsEnvironment", "SumsHarness", "Sums"]
"""


class Replies(BaseHTTPRequestHandler):
    """Answers of an OpenAI-compatible endpoint: 6, then 5, or `8?`; an error for the second conversation on 4 + 4."""

    requests = 0

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        question, hinted = body["messages"][1]["content"], len(body["messages"]) > 2
        text = ("5" if hinted else "6") if "2" in question else "8?"
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        reply = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
        status, reply = 200, reply | {"usage": usage}
        if "4" in question and not hinted:
            Replies.requests += 1
            status, reply = (400, {"error": {"message": "no such sum"}}) if Replies.requests > 1 else (status, reply)
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def write_verifiers(out: Path) -> None:
    """Evaluate a taskset with `vf-eval` against a local endpoint, one of whose answers is an error."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Replies)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "sums.py").write_text(TASKSET % (SUMS, SYSTEM))
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        command = [
            str(Path(sys.executable).with_name("vf-eval")), "sums", "--no-push", "--no-rich", "--output-dir", scratch,
            "--run.dir", "run", "--model", "lab/model", "--client.base-url", url, "--client.api-key-var", "NO_KEY",
            "--num-rollouts", "2",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": scratch, "HOME": scratch}
        subprocess.run(command, cwd=scratch, env=environment, check=False, timeout=300)
        (out / "verifiers").mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(scratch) / "run" / "traces.jsonl", out / "verifiers" / "traces.jsonl")


# -- Inspect -------------------------------------------------------------------------------------------------------
def write_inspect(out: Path) -> None:
    """Evaluate with a mock model: two epochs, a scorer with several values, unscored and failed samples."""
    from inspect_ai import Epochs, Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import Score, accuracy, match, mean, scorer
    from inspect_ai.solver import generate, solver, system_message

    @scorer(metrics={"digits": [mean()], "length": [mean()]})
    def shape():
        async def score(state, target):
            text = state.output.completion
            return Score(value={"digits": float(text.isdigit()), "length": float(len(text))})

        return score

    @scorer(metrics=[accuracy()])
    def yes_or_no():
        async def score(state, target):
            return Score(value="yes" if state.output.completion == target.text else "unclear")

        return score

    @solver
    def fail_second():
        async def solve(state, generate):
            if state.epoch == 1 and state.sample_id == 2:
                raise RuntimeError("no such sum")
            return state

        return solve

    samples = [Sample(id=k, input=text, target=answer) for k, (text, answer) in enumerate(SUMS.items(), 1)]
    for name, scorers in (("scored", [match(), shape()]), ("words", [yes_or_no()]), ("none", [])):
        task = Task(
            samples, name=name, solver=[system_message(SYSTEM), fail_second(), generate()], scorer=scorers or None,
            epochs=Epochs(2, "mean"), fail_on_error=False,
        )  # fmt: skip
        replies = [ModelOutput.from_content("mockllm/model", "5") for _ in range(4)]
        for reply in replies:  # otherwise Inspect downloads a tokenizer to count
            reply.usage = ModelUsage(input_tokens=9, output_tokens=1, total_tokens=10)
        with tempfile.TemporaryDirectory() as scratch:
            (log,) = eval(
                task, model=get_model("mockllm/model", custom_outputs=replies), log_dir=scratch, display="none",
                max_samples=1, score=bool(scorers),
            )  # fmt: skip
            (out / "inspect").mkdir(parents=True, exist_ok=True)
            shutil.copy(log.location.removeprefix("file://"), out / "inspect" / f"{name}.eval")


if __name__ == "__main__":
    {"trl": write_trl, "verl": write_verl, "verifiers": write_verifiers, "inspect": write_inspect}[sys.argv[1]](LOGS)
