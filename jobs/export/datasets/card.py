"""The dataset card, README.md: a YAML header for `datasets`, and the text of `card.md.j2`."""

from __future__ import annotations

from pathlib import Path

import yaml
from jinja2 import Environment, StrictUndefined

from jobs.export.datasets.dataset_types import FORMATS
from jobs.export.datasets.settings import EXCLUSIONS
from rl2f_core.types import JsonObject

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
SOURCES = {
    "both": "human labels, and the detectors' findings if no person decided",
    "human": "only human labels",
    "detector": "only the detectors' findings",
}
_TEMPLATE = Path(__file__).with_name("card.md.j2")


def card(manifest: JsonObject) -> str:
    """Return the card of an export. It contains no text from a model."""
    environment = Environment(trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    environment.filters |= {"plain": plain, "commas": "{:,}".format, "by_stage": by_stage}
    first_format = next(iter(manifest["formats"]))
    body = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        manifest,
        types=FORMATS,
        label_sources=SOURCES,
        exclusions=EXCLUSIONS,
        first_format=first_format,
        conditions={k: v for k, v in manifest["settings"]["filter"].items() if v not in ("", None, False)},
    )
    return f"---\n{_header(manifest)}---\n\n{body}"


def loaded_as(files: JsonObject) -> str:
    """Return the file of a configuration: Parquet if it exists, for its exact types."""
    return max(files)


def _header(manifest: JsonObject) -> str:
    most = max(entry["rows"] for entry in manifest["formats"].values())
    configs: list[JsonObject] = [
        {"config_name": name, "data_files": [{"split": "train", "path": loaded_as(entry["files"])}]}
        for name, entry in manifest["formats"].items()
    ]
    configs[0]["default"] = True
    header = {
        "pretty_name": manifest["name"],
        "language": ["en"],
        "tags": ["rl2f", "trl", "teacher-student", "leak-detection"],
        "size_categories": [next((size for limit, size in SIZES if most < limit), "n>1M")],
        "task_categories": ["text-generation", "text-classification"],
        "configs": configs,
        "dataset_info": [{"config_name": name, "features": FORMATS[name].features()} for name in manifest["formats"]],
    }
    return yaml.safe_dump(header, sort_keys=False, allow_unicode=True)


def by_stage(policies: list[JsonObject]) -> list[JsonObject]:
    """Return the counts by split and policy, with one row for the steps of a stage."""
    rows: dict[tuple[str, str], list[JsonObject]] = {}
    for row in policies:
        stage, at, step = row["policy"].rpartition("@")
        rows.setdefault((row["split"], stage if at and step.isdigit() else row["policy"]), []).append(row)
    return [
        {
            "split": split,
            "policy": " to ".join(dict.fromkeys((of_stage[0]["policy"], of_stage[-1]["policy"]))),
            "dialogues": sum(row["dialogues"] for row in of_stage),
        }
        for (split, _), of_stage in rows.items()
    ]


def plain(value: object) -> str:
    """Escape Markdown and HTML in a table cell."""
    text = "" if value is None else str(value)
    for char in "\\`*_{}[]<>|#!&":
        text = text.replace(char, f"&#{ord(char)};" if char in "<>&" else "\\" + char)
    return " ".join(text.split())
