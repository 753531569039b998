"""What is exported loads with `datasets` and trains with TRL's own trainers, unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from export_builders import leaky_events, rows_of, write_run

from jobs.export.datasets.dataset_types import FORMATS
from jobs.export.datasets.exporter import export
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import FolderSource


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of all types from a run with leaking and clean hints."""
    folder = tmp_path_factory.mktemp("export")
    run = write_run(folder / "run", leaky_events(tasks=6, siblings=4))
    assert (
        export([FolderSource(run)], ExportSettings(formats=tuple(FORMATS)), folder / "out", name="leaky hints")
        is not None
    )
    return folder / "out"


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`datasets.load_dataset` with a cache of its own."""
    from datasets import load_dataset

    cache = str(tmp_path_factory.mktemp("cache"))
    yield lambda *args, **more: load_dataset(*args, cache_dir=cache, split="train", **more)


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_type_loads_by_its_name_and_as_json_lines_with_the_same_rows(
    exported: Path, load: Any, name: str
) -> None:
    manifest = json.loads((exported / "manifest.json").read_text())
    by_name = load(str(exported), name)
    assert len(by_name) == manifest["formats"][name]["rows"] > 0
    assert by_name.column_names == list(FORMATS[name].columns)  # type: ignore[index]
    lines = load("json", data_files=str(exported / f"{name}.jsonl"))
    assert by_name.to_list() == lines.to_list() == rows_of(exported / f"{name}.jsonl")


def test_the_card_lists_every_type_as_a_configuration(exported: Path) -> None:
    from datasets import get_dataset_config_names
    from huggingface_hub import DatasetCard

    assert get_dataset_config_names(str(exported)) == list(FORMATS)
    card = DatasetCard.load(exported / "README.md")
    assert card.data.pretty_name == "leaky hints"


def arguments(config: Any, folder: Path, **more: Any) -> Any:
    return config(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        bf16=False,  # TRL's default changes how the rest of the process computes
        save_strategy="no",
        disable_tqdm=True,
        **more,
    )


def parameters(model: Any) -> list[Any]:
    return [p.detach().clone() for p in model.parameters()]


def assert_trains(trainer: Any) -> None:
    """One step gives a finite loss and moves the weights."""
    import math

    before = parameters(trainer.model)
    result = trainer.train()
    assert result.global_step == 1 and math.isfinite(result.training_loss)
    assert any(not a.equal(b) for a, b in zip(before, parameters(trainer.model), strict=True))


def model_and_tokenizer(tiny: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(tiny), AutoTokenizer.from_pretrained(tiny)


@pytest.mark.slow
def test_kto_trainer_takes_a_step_on_the_unpaired_file(exported: Path, load: Any, tiny: Path, tmp_path: Path) -> None:
    from trl import KTOConfig, KTOTrainer

    model, tokenizer = model_and_tokenizer(tiny)
    reference, _ = model_and_tokenizer(tiny)
    rows = load(str(exported), "unpaired_preference")
    assert set(rows["label"]) == {True, False}
    args = arguments(KTOConfig, tmp_path)
    assert_trains(
        KTOTrainer(model=model, ref_model=reference, args=args, train_dataset=rows, processing_class=tokenizer)
    )


@pytest.mark.slow
def test_reward_trainer_takes_a_step_on_the_pairs(exported: Path, load: Any, tiny: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    _, tokenizer = model_and_tokenizer(tiny)
    model = AutoModelForSequenceClassification.from_pretrained(tiny, num_labels=1)
    rows = load(str(exported), "preference")
    args = arguments(RewardConfig, tmp_path)
    assert_trains(RewardTrainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer))


@pytest.mark.slow
def test_dpo_trainer_takes_a_step_on_the_pairs(exported: Path, load: Any, tiny: Path, tmp_path: Path) -> None:
    from trl import DPOConfig, DPOTrainer

    model, tokenizer = model_and_tokenizer(tiny)
    reference, _ = model_and_tokenizer(tiny)
    rows = load(str(exported), "preference")
    args = arguments(DPOConfig, tmp_path)
    assert_trains(
        DPOTrainer(model=model, ref_model=reference, args=args, train_dataset=rows, processing_class=tokenizer)
    )


def test_sft_trainer_takes_a_step_on_the_messages(exported: Path, load: Any, tiny: Path, tmp_path: Path) -> None:
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = model_and_tokenizer(tiny)
    rows = load(str(exported), "messages")
    trainer = SFTTrainer(
        model=model, args=arguments(SFTConfig, tmp_path), train_dataset=rows, processing_class=tokenizer
    )
    tokens = trainer.train_dataset[0]
    assert len(tokens["labels"]) == len(tokens["input_ids"]) > len(rows[0]["turns"])  # token labels, not hint labels
    assert_trains(trainer)


def test_stepwise_rows_have_one_label_a_step(exported: Path, load: Any) -> None:
    rows = load(str(exported), "stepwise_supervision")
    assert all(len(row["completions"]) == len(row["labels"]) == len(row["turns"]) for row in rows)
    assert {tuple(row["labels"]) for row in rows} == {(True, False), (True, True)}
