"""Faults of backends, chat templates and the OpenAI protocol that were reported from outside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from export_builders import write_run
from json_endpoints import JsonEndpoints
from model_runs import write_model_run
from model_server_helpers import served, serving
from starlette.testclient import TestClient
from tokenizers import decoders

from app.common.context import Context
from app.endpoints.chat import ChatEndpoints
from app.endpoints.fork import ForkEndpoints
from app.web.server import create_app
from jobs.chat.checkpoints import ChatSettings, resolve_checkpoints
from jobs.db.engine import Database
from jobs.db.queries import dialogues, runs
from jobs.db.queries.dialogues import DialogueFilter
from jobs.export.model.exporter import export_model
from jobs.imports.importer import import_file
from jobs.ingest.ingester import import_run
from jobs.model_server.generation_loop import Output
from jobs.model_server.protocol import CompletionRequest
from jobs.model_server.responses import ResponseBuilder
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.request import RolloutRequest
from rl2f_core.errors import ConfigError, ModelError, RL2FError
from rl2f_core.evaluation.counterfactual.config import inherit_settings
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.backends.hf.token_scores import TokenScore
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.models.backends.vllm.protocol import generation_params
from rl2f_core.models.llms.base import ChatRequest
from rl2f_core.models.llms.local import LocalModel
from rl2f_core.models.renderer import ChatRenderer
from rl2f_core.models.tokenizer import ByteTokenizer, HFChatTokenizer
from rl2f_core.run.directory import RunDir

# -- temperature 0 ---------------------------------------------------------------------------------------------------
EQUAL, LATER = 40, (41, 300)
"""Tokens that are always equally likely, and more likely than all others."""
COLD = [0.0, 1e-5, 1e-3, 0.01]


@pytest.fixture(scope="module")
def ties(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose next token is always one of three with exactly equal logits.

    All hidden states are equal, and a logit is one product, so no rounding depends on the processor.
    """
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("models") / "ties"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    model = AutoModelForCausalLM.from_pretrained(folder)
    weights = {name: torch.ones_like(weight) for name, weight in model.state_dict().items()}
    for name in weights:
        if "o_proj" in name or "down_proj" in name or "lm_head" in name:
            weights[name].zero_()
    weights["lm_head.weight"][[EQUAL, *LATER], 0] = 4.0
    model.load_state_dict(weights)
    model.save_pretrained(folder)
    return folder


def hf(ties: Path, cuda_graphs: Any = "off") -> Any:
    from rl2f_core.config.model import ModelConfig
    from rl2f_core.models.backends.hf.backend import HFBackend

    return HFBackend(
        HFBackend.Config(cuda_graphs=cuda_graphs), ModelConfig(name=str(ties), dtype="float32", device="cpu")
    )


@pytest.mark.parametrize("cuda_graphs", ["off", "on"])
@pytest.mark.parametrize("temperature", COLD)
def test_a_cold_hf_backend_takes_the_lowest_of_equally_likely_tokens(
    ties: Path, temperature: float, cuda_graphs: str
) -> None:
    prompts = [GenerationRequest((50, 51, 52), seed) for seed in range(12)]
    sampled = hf(ties, cuda_graphs).generate(prompts, SamplingParams(5, temperature, 0.9))
    assert {generation.token_ids for generation in sampled} == {(EQUAL,) * 5}
    assert {generation.logprobs for generation in sampled} == {(0.0,) * 5}


def test_a_cold_hf_backend_takes_the_lowest_of_equally_likely_choices(ties: Path) -> None:
    prompts = [GenerationRequest((50, 51), seed, choices=((300,), (41,), (7,))) for seed in range(8)]
    assert {generation.token_ids for generation in hf(ties).generate(prompts, SamplingParams(1, 0.0))} == {(41,)}


def test_a_cold_vllm_request_is_greedy() -> None:
    params = generation_params(SamplingParams(8, 0.01, 0.5), 7, 2, ())
    assert (params["temperature"], params["top_p"]) == (0.0, 1.0)


@pytest.mark.parametrize("choices", [(), ((66,), (65,))], ids=["text", "choices"])
def test_a_cold_fake_backend_depends_on_no_seed(choices: tuple[tuple[int, ...], ...]) -> None:
    backend = FakeBackend(script=lambda text, rng: str(rng.random()))
    prompts = [GenerationRequest((65,), seed, choices=choices) for seed in range(8)]
    replies = {generation.token_ids for generation in backend.generate(prompts, SamplingParams(20, 0.0))}
    assert len(replies) == 1 and (not choices or replies == {(65,)})


@pytest.mark.parametrize("size", [384, 49152])
def test_a_nucleus_of_one_token_has_the_lowest_of_equally_likely_ones(size: int) -> None:
    import torch

    from rl2f_core.models.backends.hf.token_sampling import sample_tokens

    uniform = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    assert sample_tokens(torch.zeros(3, size), uniform, 1e-9)[0].tolist() == [0, 0, 0]


def test_the_most_likely_tokens_are_listed_by_id_if_they_are_equally_likely() -> None:
    import torch

    from rl2f_core.models.backends.hf.token_scores import ScoredSampling, score_tokens

    (score,) = score_tokens(torch.zeros(1, 100), [5], [ScoredSampling(1, top_logprobs=3)])
    assert [token for token, _ in score.top] == [0, 1, 2]


@pytest.mark.parametrize("more", [{}, {"seed": 7}, {"n": 3}, {"top_p": 0.5}], ids=["no-seed", "seed", "n", "top_p"])
def test_the_model_server_answers_equal_greedy_requests_equally(
    ties: Path, greedy_server: Any, more: dict[str, Any]
) -> None:
    body = {"model": "ties", "prompt": [50, 51], "max_tokens": 6, "temperature": 0, "return_token_ids": True, **more}
    replies = [greedy_server.post("/v1/completions", json=body).json()["choices"] for _ in range(4)]
    assert {tuple(choice["token_ids"]) for choices in replies for choice in choices} == {(EQUAL,) * 6}


def test_the_model_server_names_the_greedy_token_as_the_most_likely_one(ties: Path, greedy_server: Any) -> None:
    body = {"model": "ties", "prompt": [50], "max_tokens": 2, "temperature": 0, "logprobs": 1}
    logprobs = greedy_server.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert [list(top) for top in logprobs["top_logprobs"]] == [[token] for token in logprobs["tokens"]]


@pytest.fixture(scope="module")
def greedy_server(ties: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    run = write_model_run(tmp_path_factory.mktemp("runs") / "ties-run", ties, ["rl@2"])
    with serving(served(run, ["2"])) as (_, client):
        yield client


def test_a_greedy_chat_depends_on_no_seed(greedy_server: Any) -> None:
    body = chat(temperature=0, max_tokens=4, return_token_ids=True)
    replies = [greedy_server.post("/v1/chat/completions", json={**body, "seed": seed}).json() for seed in range(6)]
    assert [reply["choices"][0]["token_ids"] for reply in replies] == [[EQUAL] * 4] * 6


def test_a_local_model_at_temperature_0_depends_on_no_seed(ties: Path) -> None:
    pool = ModelPool(hf(ties))
    llm = LocalModel(LocalModel.Config(), pool)
    chats = [ChatRequest(({"role": "user", "content": "Hello."},), seed) for seed in range(6)]
    texts = {reply.text for reply in llm.complete(chats, max_new_tokens=4, temperature=0.0)}
    assert texts == {pool.student.tokenizer.decode([EQUAL] * 4).strip()}


GREEDY_RUN: dict[str, Any] = {"evaluation": {"num_tasks": 3, "temperature": 0, "conditions": ["resample"]}}


def test_an_evaluation_at_temperature_0_is_greedy(ties: Path, tmp_path: Path) -> None:
    model = {"name": str(ties), "dtype": "float32", "device": "cpu"}
    config: Any = RunDir(write_run(tmp_path / "run", [], model=model, **GREEDY_RUN)).config()
    engine = build_engine(config, hf(ties))
    task = engine.environment.task("test", 0)
    requests = [RolloutRequest(task, f"g{seed}", "g", seed, seed) for seed in range(6)]
    rollouts = engine.run(requests, max_turns=1, temperature=config.evaluation.temperature)
    assert {turn.token_ids for rollout in rollouts for turn in rollout.dialogue.turns} == {(EQUAL,) * 8}


def test_a_fork_of_a_greedy_evaluation_is_greedy(tiny: Path, tmp_path: Path) -> None:
    run = RunDir(write_run(tmp_path / "run", [], model={"name": str(tiny)}, **GREEDY_RUN))
    assert BaseRun.model_validate(inherit_settings(run, "evaluation", "rl", 1)).rollout.temperature == 0


def test_the_modelfile_of_a_run_with_greedy_evaluation_is_greedy(tiny: Path, tmp_path: Path) -> None:
    folder = write_model_run(tmp_path / "run", tiny, ["rl@2"])
    run = RunDir(folder)
    changed = run.config_path.read_text().replace("  temperature: null\n", "  temperature: 0\n", 1)
    run.config_path.write_text(changed)
    export_model(folder, "rl@2", tmp_path / "out", format="gguf-f32")
    assert "PARAMETER temperature 0\n" in (tmp_path / "out" / "Modelfile").read_text()


@pytest.mark.parametrize("temperature", [0, 0.01])
def test_training_without_random_attempts_is_refused(temperature: float) -> None:
    stage = {"name": "rl", "method": "rl2f", "steps": 1, "tasks_per_step": 1, "group_size": 2}
    data = {"environment": "secret_code", "stages": [stage], "rollout": {"temperature": temperature}}
    with pytest.raises(ConfigError, match=r"rollout\.temperature.*evaluation\.temperature: 0"):
        parse_config(data)


# -- the OpenAI protocol ---------------------------------------------------------------------------------------------
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "ties", "messages": [*messages, {"role": "user", "content": "Go on."}], "max_tokens": 2, **more}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (chat({"role": "assistant", "content": "", "tool_calls": [CALL]}), "tool_calls"),
        (chat({"role": "assistant", "content": None, "function_call": CALL["function"]}), "function_call"),
        (chat({"role": "assistant", "refusal": "I cannot."}), "refusal"),
        (chat({"role": "assistant", "audio": {"id": "a"}}), "audio"),
        (chat({"role": "user", "content": "Hi.", "name": "Zoey"}), "name"),
        (chat({"role": "assistant", "content": "So", "prefix": True}), "prefix"),
        (chat({"role": "user", "content": [{"type": "text"}]}), "text"),
        (chat({"role": "user", "content": [{"type": "text", "text": 5}]}), "text"),
        (chat({"role": "user", "content": [{"type": "text", "text": "x", "image": "y"}]}), "image"),
        (chat(stream=True, stream_options={"continuous_usage_stats": True}), "continuous_usage_stats"),
        (chat(top_logprobs=2), "top_logprobs"),
        (chat(max_completion_tokens=1), "max_completion_tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_that_would_be_dropped_is_refused(greedy_server: Any, body: dict[str, Any], names: str) -> None:
    response = greedy_server.post("/v1/chat/completions", json=body)
    assert response.status_code == 400 and names in response.json()["error"]["message"]


def test_an_assistant_message_of_the_official_client_is_accepted(greedy_server: Any) -> None:
    empty = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    body = chat({"role": "user", "content": [{"type": "text", "text": "Hi."}]},
                {"role": "assistant", "content": "Hello.", **empty})  # fmt: skip
    assert greedy_server.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_text_offsets_are_positions_in_the_text(stream: bool) -> None:
    """The parts of two characters of several tokens, one in the echoed prompt and one across two chunks."""
    tokenizer = ByteTokenizer()
    prompt, sampled = tokenizer.encode("aé😀b"), tokenizer.encode("cü😀")
    request = CompletionRequest(model="m", prompt=prompt, echo=True, logprobs=0, stream=stream)
    builder = ResponseBuilder(request, [tuple(prompt)], tokenizer.decode)
    score = TokenScore(-1.0, ())
    parts = [sampled[:2], sampled[2:5], sampled[5:]] if stream else [sampled]
    outputs = [
        Output(0, "", tuple(part), (score,) * len(part), (score,) * (len(prompt) - 1) if i == 0 else (), None)
        for i, part in enumerate(parts)
    ]
    if stream:
        choices = [builder.chunk(out, is_first=i == 0)["choices"][0] for i, out in enumerate(outputs)]
    else:
        choices = builder.whole(outputs)["choices"]
    offsets = [offset for choice in choices for offset in choice["logprobs"]["text_offset"]]
    assert offsets == [0, 1, 1, 2, 2, 2, 2, 3, 4, 5, 5, 6, 6, 6, 6]


BYTES = {
    "unfinished": ([b"\xf0\x9f", b"a", b"b"], [0, 1, 2]),
    "unfinished-before-lead": ([b"\xe2", b"\xc3", b"\xa9", b"x"], [0, 1, 1, 2]),
    "continuations-alone": ([b"\x80", b"\x80", b"a"], [0, 1, 2]),
    "no-continuation-of-this-lead": ([b"\xe0", b"\x80", b"a"], [0, 1, 2]),
    "continued-and-unfinished": ([b"\xf0\x9f", b"\x98a", b"b"], [0, 0, 2]),
    "finished-after-invalid": ([b"\x80", b"\xf0\x9f", b"\x98", b"\x80", b"c"], [0, 1, 1, 1, 2]),
    "lead-at-the-end-of-a-token": ([b"a\xf0", b"\x9f", b"b"], [0, 1, 2]),
    "finished-with-the-next": ([b"\xf0", b"\x9f\x98\x80\xc3", b"\xa9", b"b"], [0, 0, 1, 2]),
    "replacement-character": (["\ufffd".encode(), b"a"], [0, 1]),
}
"""Bytes of tokens, and the offset of each, by what is not valid UTF-8."""


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(("tokens", "offsets"), BYTES.values(), ids=BYTES)
def test_text_offsets_count_characters_of_invalid_bytes(tokens: list[bytes], offsets: list[int], stream: bool) -> None:
    result = text_offsets(len(tokens), lambda ids: b"".join(tokens[i] for i in ids).decode("utf-8", "replace"), stream)
    assert result == offsets


@pytest.mark.parametrize(
    ("tokens", "offsets"),
    [("<0xF0> <0x9F> <0x98> <0x80> a b", [0, 0, 0, 0, 1, 2]), ("<0xF0> <0x9F> a b", [0, 0, 2, 3])],
)
def test_text_offsets_with_byte_fallback(tokens: str, offsets: list[int]) -> None:
    """Its decoder writes one character for each byte of an unfinished one, so that a continuation is unknown."""
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    parts = tokens.split()
    decode = lambda ids: decoder.decode([parts[i] for i in ids])  # noqa: E731
    assert text_offsets(len(parts), decode, stream=True, splits_characters=True) == offsets


def text_offsets(
    count: int, decode: Callable[[Sequence[int]], str], stream: bool, *, splits_characters: bool = False
) -> list[int]:
    """Return the offsets of the sampled tokens 0, 1, 2, …; a stream has a chunk for each."""
    request = CompletionRequest(model="m", prompt=[0], logprobs=0, stream=stream)
    builder = ResponseBuilder(request, [(0,)], decode, splits_characters)
    parts = [(i,) for i in range(count)] if stream else [tuple(range(count))]
    outputs = [Output(0, "", part, (TokenScore(-1.0, ()),) * len(part), (), None) for part in parts]
    if stream:
        choices = [builder.chunk(out, is_first=i == 0)["choices"][0] for i, out in enumerate(outputs)]
    else:
        choices = builder.whole(outputs)["choices"]
    return [offset for choice in choices for offset in choice["logprobs"]["text_offset"]]


# -- chat templates --------------------------------------------------------------------------------------------------
TURNS = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
TEMPLATES = {
    "invalid": ("\n{% for m in messages %}", "not valid: line 2"),
    "unknown-filter": ("{{ messages|nofilter }}", "not valid: line 1"),
    "type-error": ("{{ 1 + 'a' }}", "failed on messages with the roles user, assistant: unsupported operand"),
    "division": ("{{ 1 / 0 }}", "failed.*division by zero"),
    "raises": ("{{ raise_exception('No system message.') }}", "failed.*No system message"),
    "omits-attempts": (TURNS.replace("m['content']", "('' if m['role'] == 'assistant' else m['content'])") + OPEN,
                       "omits or changes the text of an assistant message"),
    "changes-attempts": (TURNS.replace("m['content']", "m['content']|upper") + OPEN, "omits or changes the text"),
    "omits-system": (TURNS.replace("m['content']", "('' if m['role'] == 'system' else m['content'])") + OPEN,
                     "omits the system message"),
    "omits-user": (TURNS.replace("m['content']", "('' if m['role'] == 'user' else m['content'])") + OPEN,
                   "omits the user message"),
}  # fmt: skip


@pytest.mark.parametrize(("template", "reason"), TEMPLATES.values(), ids=TEMPLATES)
def test_a_chat_template_that_fails_is_named(tiny: Path, tmp_path: Path, template: str, reason: str) -> None:
    from transformers import AutoTokenizer

    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError, match=reason):
        ChatRenderer(HFChatTokenizer(AutoTokenizer.from_pretrained(tmp_path / "model")), "Be brief.")


# -- runs without a base model ---------------------------------------------------------------------------------------
@pytest.fixture
def imported(context: Context, tmp_path: Path) -> int:
    rows = [{"input": "user\nWhat is 2 + 2?\nassistant\n", "output": "4", "score": 1.0, "step": 1, "gts": "4"}]
    (tmp_path / "rollouts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return import_file(context.db, context.workspace, tmp_path / "rollouts.jsonl").id or 0


@pytest.fixture
def context(workspace: Workspace, db: Database) -> Context:
    return Context(workspace, db, Queue(db, workspace))


def test_an_imported_run_without_a_known_model_is_not_offered_in_chat(context: Context, imported: int) -> None:
    model = runs.get(context.db, imported).model
    assert model not in ChatEndpoints(context).list_chat_models().models
    with pytest.raises(RL2FError, match=f"not known to the workspace.*{model}"):
        resolve_checkpoints(context.db, context.workspace, ChatSettings(model=model))


def test_a_checkpoint_whose_base_model_is_gone_is_not_offered_in_chat(
    context: Context, tiny: Path, tmp_path: Path
) -> None:
    base = shutil.copytree(tiny, tmp_path / "base")
    write_model_run(context.workspace.runs / "r", base, ["rl@2"])
    import_run(context.db, context.workspace, "r")
    assert ChatEndpoints(context).list_chat_models().runs
    shutil.rmtree(base)
    left = ChatEndpoints(context).list_chat_models()
    assert left.runs == [] and str(base) not in left.models


def test_a_fork_of_an_imported_run_without_a_known_model_says_why_it_is_refused(
    context: Context, imported: int
) -> None:
    event = dialogues.page(context.db, DialogueFilter(run=imported)).rows[0].event_id
    with pytest.raises(RL2FError, match="base model is not known"):
        JsonEndpoints(ForkEndpoints(context)).fork_choices(imported, event)


# -- behind a proxy --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("host", "origin"),
    [("127.0.0.1", "http://127.0.0.1:8080"), ("localhost", "https://localhost:8443")],
    ids=["nginx-$host", "tls"],
)
def test_a_proxy_that_drops_the_port_of_the_host_is_named(context: Context, host: str, origin: str) -> None:
    app = create_app(context, site_pages=[])
    response = TestClient(app, base_url=f"http://{host}").get("/static/theme.css", headers={"Origin": origin})
    assert response.status_code == 403 and "proxy_set_header Host $http_host" in response.json()["error"]
