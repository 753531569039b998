"""Paths of the packages and of the data that ship with them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Directory that holds the packages and `data/`; on the Python path of every worker process."""
_IN_WHEEL = ROOT / "rl2f_core" / "data"
DATA = _IN_WHEEL if _IN_WHEEL.is_dir() else ROOT / "data"
"""`data/` of the repository; in an installed wheel, its copy in the package (`setup.py`)."""
CONFIGS = DATA / "configs"
"""Presets, one YAML file each."""
PROMPTS = DATA / "prompts"
"""Prompt templates of model teachers and judges."""
LEAK_BENCHMARK = DATA / "leak_benchmark"
HANDWRITTEN_LEAKS = DATA / "leaks" / "handwritten.jsonl"
TEACHER_WRITTEN_LEAKS = DATA / "leaks" / "teacher_written.jsonl"
MENTION_WEIGHTS = DATA / "leaks" / "mentions.json"
"""Default weights of the leak detector `mentions`, with their report."""
LEAK_RESULTS = DATA / "results" / "leaks"
"""Recorded comparisons of leak detectors."""
QUICKSTART_RESULTS = DATA / "results" / "quickstart"
"""Recorded runs of the preset quickstart, one folder for each seed."""
EXAMPLE_RUNS = DATA / "example_runs"
MATH_SAMPLE = DATA / "math_sample" / "sample.jsonl"
STDLIB_FILES = DATA / "auto_explore" / "stdlib.jsonl"
"""Files of the environment `auto_explore`."""
QUESTIONS_SAMPLE = DATA / "own_questions" / "sample.csv"
