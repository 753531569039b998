"""Two halves of all tasks: detectors are tuned on the one, `dev`, and measured on the other, `test`.

A task belongs to a half by its content alone, so it is in the same half in every run, and all hints on it with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

DEV, TEST = "dev", "test"
FIRST_OF_DEV = "8"
"""Hashes that begin with this hexadecimal digit or a later one are of the half that detectors are tuned on."""


def content(environment: str, public: Mapping[str, Any], privileged: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that two tasks share where environment, problem and answer are the same.

    The answer counts as well: many tasks have one problem text and differ in nothing else.
    """
    halves = [environment, public, privileged]
    text = json.dumps(halves, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def in_test(content: str) -> bool:
    """Whether a task with this content is of the test half."""
    return content[:1] < FIRST_OF_DEV
