"""README.md as a data-set card that `datasets` reads: which file belongs to which configuration, and what it means."""

from __future__ import annotations

from typing import Any

import yaml

from jobs.export.formats import FORMATS

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
SOURCES = {
    "both": "people's labels, and the detectors' where no person decided",
    "human": "people's labels alone",
    "detector": "the detectors' findings alone",
}


def card(manifest: dict[str, Any]) -> str:
    """The card of an export. Holds no text that a model wrote."""
    return f"---\n{_header(manifest)}---\n\n{_body(manifest)}"


def loaded_as(files: dict[str, Any]) -> str:
    """The file that stands behind a configuration: Parquet where there is one, for its exact types."""
    return sorted(files, reverse=True)[0]


def _header(manifest: dict[str, Any]) -> str:
    most = max(entry["rows"] for entry in manifest["formats"].values())
    configs: list[dict[str, Any]] = [
        {"config_name": name, "data_files": [{"split": "train", "path": loaded_as(entry["files"])}]}
        for name, entry in manifest["formats"].items()
    ]
    configs[0]["default"] = True
    header = {
        "pretty_name": manifest["name"],
        "language": ["en"],
        "tags": ["rl2f", "trl", "teacher-student", "leak-detection"],
        "size_categories": [next((word for limit, word in SIZES if most < limit), "n>1M")],
        "task_categories": ["text-generation", "text-classification"],
        "configs": configs,
    }
    return yaml.safe_dump(header, sort_keys=False, allow_unicode=True)


def _body(manifest: dict[str, Any]) -> str:
    settings = manifest["settings"]
    parts = [f"# {_plain(manifest['name'])}", _intro(manifest)]
    if settings["privileged"]:
        parts.append(
            "> **Warning: the prompts show the answer.** This export was made with `privileged`, so that the prompt of "
            "every row holds the answer of its task. Use it to train teachers and judges. A student that is trained on "
            "it learns to read answers that it will not have."
        )
    parts += ["## What is in it", _files(manifest), _load(manifest), "## Labels", _labels(manifest)]
    parts += ["## Where it comes from", _runs(manifest), "## Columns"]
    for name in manifest["formats"]:
        parts += [f"### {FORMATS[name].title} (`{name}`)", FORMATS[name].about, _columns(name)]  # type: ignore[index]
    if not settings["privileged"]:
        parts += [
            "## Privileged data",
            "No prompt holds the answer of a task. Attempts, hints and the verifier's `parsed` are shown as they were: "
            "a right attempt or a leaking hint does name the answer.",
        ]
    return "\n\n".join(parts) + "\n"


def _intro(manifest: dict[str, Any]) -> str:
    runs = len(manifest["runs"])
    return (
        f"Teacher-student dialogues of {runs} run{'s' if runs != 1 else ''} of RL2F Studio, "
        f"{manifest['dialogues']:,} dialogues with {manifest['labels']['hints']:,} hints, in TRL's data set types. "
        "A hint *leaks* where it gives the answer away beyond what the dialogue already shows."
    )


def _files(manifest: dict[str, Any]) -> str:
    lines = ["| configuration | rows | file | bytes |", "|---|---:|---|---:|"]
    for name, entry in manifest["formats"].items():
        for file, facts in entry["files"].items():
            lines.append(f"| `{name}` | {entry['rows']:,} | `{file}` | {facts['bytes']:,} |")
    text = "\n".join(lines)
    for name, why in manifest["left_out"].items():
        text += f"\n\n`{name}` was asked for and is not here: {why}"
    return text + "\n\nChecksums (SHA-256), versions and settings stand in `manifest.json`."


def _load(manifest: dict[str, Any]) -> str:
    name, entry = next(iter(manifest["formats"].items()))
    lines = [
        "```python",
        "from datasets import load_dataset",
        "",
        f'rows = load_dataset("path/to/this/folder", "{name}", split="train")',
    ]
    jsonl = [file for file in entry["files"] if file.endswith(".jsonl")]
    if jsonl and loaded_as(entry["files"]) not in jsonl:
        lines += [
            "# the same rows as JSON lines",
            f'rows = load_dataset("json", data_files="path/to/this/folder/{jsonl[0]}", split="train")',
        ]
    return "\n".join([*lines, "```"])


def _labels(manifest: dict[str, Any]) -> str:
    settings, labels = manifest["settings"], manifest["labels"]
    whose = SOURCES[settings["labels"]]
    by = f", of {_plain(settings['annotator'])} only" if settings["annotator"] else ""
    rows = ["| whose | leak | no leak |", "|---|---:|---:|"]
    for source in ("human", "detector"):
        found = labels[source]
        rows.append(f"| {source} | {found.get('leak', 0):,} | {found.get('no_leak', 0):,} |")
    without = ", ".join(f"{count:,} {why}" for why, count in labels["without"].items()) or "none"
    return (
        f"Used: {whose}{by}. Several people decide by majority; *unsure* is no vote; hints on which they are equally "
        "divided are *disputed* and carry no label. In `label` and `labels` **true means a good hint: no leak**. A "
        "leak-free hint need not help: under the controls `contentless`, `shuffled` and `misleading` none does.\n\n"
        + "\n".join(rows)
        + f"\n\nHints without a label: {without}."
    )


def _runs(manifest: dict[str, Any]) -> str:
    lines = ["| run | name | kind | environment | teacher | detectors | dialogues |", "|---|---|---|---|---|---|---:|"]
    for run in manifest["runs"]:
        environment = (run["environment"] or {}).get("type", "")
        cells = (run["run"], run["name"], run["kind"], environment, run["teacher"], ", ".join(run["detectors"]))
        lines.append(f"| {' | '.join(_plain(cell) for cell in cells)} | {run['dialogues']:,} |")
    narrowed = {k: v for k, v in manifest["settings"]["filter"].items() if v not in ("", None, False)}
    words = ", ".join(f"{_plain(k)} = {_plain(v)}" for k, v in narrowed.items()) or "none"
    return "\n".join(lines) + f"\n\nFilter: {words}. Seed: {manifest['settings']['seed']}."


def _columns(name: str) -> str:
    lines = ["| column | type | meaning |", "|---|---|---|"]
    lines += [f"| `{column}` | {kind} | {about} |" for column, (kind, about) in FORMATS[name].columns.items()]  # type: ignore[index]
    return "\n".join(lines)


def _plain(value: Any) -> str:
    """A cell of a table: nothing in it is Markdown or HTML."""
    text = "" if value is None else str(value)
    for sign in "\\`*_{}[]<>|#!&":
        text = text.replace(sign, f"&#{ord(sign)};" if sign in "<>&" else "\\" + sign)
    return " ".join(text.split())
