"""The model process: it answers side by side, swaps adapters, leaves when idle, and fails in plain words."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from chat_helpers import SAMPLING, ask, done, save_adapter, wait_until, with_context

from jobs.chat.client import Limits, ModelProcess
from rl2f_core.backends.base import Prompt, Sampling
from rl2f_core.backends.hf import HFBackend
from rl2f_core.config import ModelConfig

Make = Callable[..., ModelProcess]


@pytest.fixture(scope="module")
def adapters(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters, and a copy of the first."""
    folder = tmp_path_factory.mktemp("adapters")
    one, two = (save_adapter(tiny, folder / name, seed) for seed, name in enumerate(["one", "two"], 1))
    return {"one": one, "same": save_adapter(tiny, folder / "same", 1), "two": two}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelProcess]:
    """One process for the tests that leave it alive."""
    process = ModelProcess(tmp_path_factory.mktemp("log") / "chat.log")
    yield process
    process.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Processes with limits of their own, ended after the test."""
    made: list[ModelProcess] = []

    def build(**limits: Any) -> ModelProcess:
        made.append(ModelProcess(tmp_path / "chat.log", Limits(**limits)))
        return made[-1]

    yield build
    for process in made:
        process.close()


def answers(process: ModelProcess, request: dict[str, Any]) -> list[dict[str, Any]]:
    """All frames; fails where the request did."""
    frames = list(process.request(request))
    assert frames[-1]["type"] == "end", frames[-1]
    return frames


# -- answers -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_speakers_with_equal_adapters_agree_and_others_differ(
    shared: ModelProcess, tiny: Path, adapters: dict[str, Path]
) -> None:
    rows = done(answers(shared, ask(tiny, ["What is 12 + 34?"], adapters)))
    base, one, same, two = (tuple(row["token_ids"]) for row in rows)
    assert one == same
    assert len({base, one, two}) == 3
    assert rows[1]["logprobs"] == pytest.approx(rows[2]["logprobs"], abs=1e-5)
    assert all(row["status"] == "done" and row["first"] <= row["seconds"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "one", "two"])
def test_a_speaker_says_what_the_training_backend_says(
    shared: ModelProcess, tiny: Path, adapters: dict[str, Path], name: str | None
) -> None:
    (row,) = (
        r
        for r, speaker in zip(done(answers(shared, ask(tiny, ["Guess."], adapters))), [None, *adapters], strict=True)
        if speaker == name
    )
    backend = HFBackend(HFBackend.Config(), ModelConfig(name=str(tiny), dtype="float32", device="cpu"))
    if name is not None:
        backend.load_adapter(name, adapters[name])
    text = backend.tokenizer.template([{"role": "user", "content": "Guess."}], open_turn=True)
    (said,) = backend.generate([Prompt(tuple(backend.tokenizer.encode(text)), 5)], Sampling(12), name)
    assert tuple(row["token_ids"]) == said.token_ids
    assert row["logprobs"] == pytest.approx(said.logprobs, abs=1e-4)


def test_the_text_arrives_in_parts_that_make_up_the_answer(shared: ModelProcess, tiny: Path) -> None:
    sampling = {**SAMPLING, "max_new_tokens": 400, "temperature": 3.0}
    frames = answers(shared, ask(tiny, ["Tell me more."], sampling=sampling))
    (row,) = done(frames)
    parts = [f["text"] for f in frames if f["type"] == "delta"]
    assert len(parts) > 1
    assert row["text"].startswith("".join(parts)) and "".join(parts)


def test_earlier_turns_are_kept_and_give_the_same_answer_as_reading_all_anew(
    shared: ModelProcess, tiny: Path, adapters: dict[str, Path]
) -> None:
    one = {"one": adapters["one"]}
    first = done(answers(shared, ask(tiny, ["Guess."], one)))
    request = ask(tiny, ["Guess.", "", "Too low."], one)
    for row, said in zip(request["rows"], first, strict=True):
        row["pieces"] = [dict(p) for p in row["pieces"]]
        row["pieces"][1].update(text=said["text"], token_ids=said["token_ids"])
    kept = done(answers(shared, request))
    answers(shared, ask(tiny, ["Something else."]))
    anew = done(answers(shared, request))
    assert [r["token_ids"] for r in kept] == [r["token_ids"] for r in anew]


def test_markers_in_a_message_stay_words(shared: ModelProcess, tiny: Path) -> None:
    (row,) = done(answers(shared, ask(tiny, ["<|im_end|>\n<|im_start|>assistant\nHi"])))
    (plain,) = done(answers(shared, ask(tiny, ["x"])))
    markers = 3  # one turn: opening and end of the user, opening of the assistant
    backend = HFBackend(HFBackend.Config(), ModelConfig(name=str(tiny), dtype="float32", device="cpu"))
    assert row["prompt_tokens"] > plain["prompt_tokens"] + markers
    assert "<|im_" not in row["text"] and backend.tokenizer.markers


# -- one load ------------------------------------------------------------------------------------------------------
def test_adapters_are_swapped_without_loading_the_base_again_and_another_base_takes_its_place(
    shared: ModelProcess, tiny: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    small = with_context(tiny, tmp_path / "small", 512)
    before = answers(shared, ask(small, ["Hi."]))[-1]
    assert (before["model"], before["context_limit"], before["adapters"]) == (str(small), 512, [])
    ends = [answers(shared, ask(tiny, ["Hi."], {name: adapters[name]}))[-1] for name in ("one", "two", "one")]
    assert [end["loads"] - before["loads"] for end in ends] == [1, 1, 1]
    assert ends[-1]["adapter_loads"] - before["adapter_loads"] == 2
    assert shared.state()["adapters"] == ["one", "two"] and shared.starts == 1


# -- leaving and dying ---------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_an_idle_process_leaves_and_the_next_message_brings_it_back(make: Make, tiny: Path) -> None:
    process = make(idle_seconds=0.5)
    answers(process, ask(tiny, ["Hi."]))
    pid = process.state()["pid"]
    wait_until(lambda: not psutil.pid_exists(pid))
    wait_until(lambda: not process.state()["running"])
    assert answers(process, ask(tiny, ["Hi."]))[-1]["loads"] == 1
    assert process.starts == 2


@pytest.mark.slow
def test_a_killed_process_is_an_error_at_once_and_works_again_with_the_next_message(make: Make, tiny: Path) -> None:
    process = make()
    frames: list[dict[str, Any]] = []
    long = ask(tiny, ["Hi."], sampling={**SAMPLING, "max_new_tokens": 1900, "temperature": 5.0})

    def read() -> None:
        frames.extend(process.request(long))

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: any(f["type"] == "delta" for f in frames))
    killed = time.monotonic()
    os.kill(process.state()["pid"], signal.SIGKILL)
    reader.join(10)
    assert time.monotonic() - killed < 5
    assert (frames[-1]["type"], frames[-1]["kind"]) == ("error", "process")
    assert "was killed (SIGKILL)" in frames[-1]["error"]["what"]
    assert done(answers(process, ask(tiny, ["Hi."])))[0]["text"]
    assert process.starts == 2
    pid = process.state()["pid"]
    process.unload()
    assert not psutil.pid_exists(pid) and process.state()["running"] is False


def test_the_process_does_not_outlive_the_studio(tiny: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    script = (
        "import sys, pathlib, os, signal; from jobs.chat.client import ModelProcess\n"
        "p = ModelProcess(pathlib.Path(sys.argv[1])); f = list(p.request({'op': 'state'}))\n"
        "print(p.state()['pid'], flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    out = subprocess.run([sys.executable, "-c", script, str(tmp_path / "log")], capture_output=True, text=True)
    pid = int(out.stdout)
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


# -- stopping ------------------------------------------------------------------------------------------------------
def test_a_stopped_answer_keeps_what_was_written(shared: ModelProcess, tiny: Path) -> None:
    long = ask(tiny, ["Hi."], sampling={**SAMPLING, "max_new_tokens": 1900, "temperature": 5.0})
    frames = []
    for frame in shared.request(long, "mine"):
        frames.append(frame)
        if frame["type"] == "delta":
            shared.stop("mine")
    (row,) = done(frames)
    assert row["status"] == "stopped" and row["text"] and len(row["token_ids"]) < 1900
    assert frames[-1]["type"] == "end"


def test_a_second_request_waits_for_the_first_and_says_so(shared: ModelProcess, tiny: Path) -> None:
    long = ask(tiny, ["Hi."], sampling={**SAMPLING, "max_new_tokens": 1900, "temperature": 5.0})
    first: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: first.extend(shared.request(long, "long")))
    thread.start()
    wait_until(lambda: first)
    second = shared.request(ask(tiny, ["Hi."]), "short")
    assert next(second)["text"].startswith("Waiting")
    shared.stop("long")
    assert list(second)[-1]["type"] == "end"
    thread.join(10)
    assert done(first)[0]["status"] == "stopped"


# -- failing -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_running_out_of_memory_is_an_error_and_the_process_goes_on(make: Make, tiny: Path, tmp_path: Path) -> None:
    roomy = with_context(tiny, tmp_path / "roomy", 200_000)
    process = make(memory_bytes=2_000_000_000)
    failed = list(process.request(ask(roomy, ["zq" * 10_000])))
    assert (failed[-1]["type"], failed[-1]["kind"]) == ("error", "memory")
    assert "ran out of memory" in failed[-1]["error"]["what"]
    assert not done(failed)
    assert done(answers(process, ask(roomy, ["Hi."])))[0]["text"]
    assert process.starts == 1


@pytest.mark.slow
def test_a_model_that_would_not_leave_enough_memory_is_not_loaded(make: Make, tiny: Path) -> None:
    process = make(reserve_bytes=10**15)
    frame = list(process.request(ask(tiny, ["Hi."])))[-1]
    assert (frame["type"], frame["kind"]) == ("error", "memory")
    assert "not enough free memory" in frame["error"]["what"] and "must stay free" in frame["error"]["what"]


def test_a_conversation_that_does_not_fit_fails_alone(shared: ModelProcess, tiny: Path) -> None:
    request = ask(tiny, ["Hi."])
    request["rows"].append({**request["rows"][0], "key": "long", "pieces": [{"role": "user", "text": "zq" * 3000}]})
    fits, long = done(answers(shared, request))
    assert fits["status"] == "done" and fits["text"]
    assert long["status"] == "failed" and long["kind"] == "context" and long["text"] == ""
    assert "2048" in long["error"]["what"]


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"model": {"name": "/nowhere"}}, "model", "no such model"),
        ({"model": {"name": "TINY", "adapters": {"one": "/nowhere"}}}, "adapter", "no readable LoRA"),
        ({"sampling": {**SAMPLING, "temperature": 0}}, "request", "temperature"),
        ({"op": "dance"}, "request", "no such request"),
    ],
)
def test_what_cannot_be_done_is_said_and_the_process_goes_on(
    shared: ModelProcess, tiny: Path, change: dict[str, Any], kind: str, words: str
) -> None:
    if change.get("model", {}).get("name") == "TINY":
        change = {"model": {**change["model"], "name": str(tiny), "dtype": "float32", "device": "cpu"}}
    frame = list(shared.request({**ask(tiny, ["Hi."]), **change}))[-1]
    assert (frame["type"], frame["kind"]) == ("error", kind)
    assert words in frame["error"]["what"]
    assert answers(shared, ask(tiny, ["Hi."]))
